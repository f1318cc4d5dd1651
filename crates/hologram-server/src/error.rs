//! Errors of requests: an HTTP status and what each protocol's error object needs.

use hologram_llm::LlmError;
use hyper::StatusCode;
use serde_json::{Value, json};

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// The status of the response.
    pub status: StatusCode,
    /// OpenAI's `type`.
    pub kind: &'static str,
    /// OpenAI's `code`.
    pub code: Option<&'static str>,
    /// The parameter at fault, such as `messages[0].role`.
    pub param: Option<String>,
    /// One sentence.
    pub message: String,
    /// Seconds after which to try again.
    pub retry_after: Option<u32>,
    /// Tokens of a prompt that is too long, and of the context.
    pub context: Option<Box<[usize; 2]>>,
}

/// The most models that an error lists.
const MAX_LISTED: usize = 50;

/// A `Result` with [`ApiError`].
pub type Result<T> = std::result::Result<T, ApiError>;

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> ApiError {
        let message = message.into();
        ApiError { status, kind, code: None, param: None, message, retry_after: None, context: None }
    }

    /// 400: this parameter is at fault.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        ApiError { param: Some(param.into()), ..ApiError::bad_request(message) }
    }

    /// 400: this parameter, or this value of it, is not supported.
    pub fn unsupported(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        ApiError { code: Some("unsupported_parameter"), ..ApiError::invalid(param, message) }
    }

    /// 400: this parameter must be one of these words.
    pub fn none_of(param: impl Into<String>, words: &[&str]) -> ApiError {
        let param = param.into();
        let listed = words.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(", ");
        let one_of = if words.len() > 1 { "one of " } else { "" };
        let message = format!("{param} must be {one_of}{listed}");
        ApiError { code: Some("invalid_value"), ..ApiError::invalid(param, message) }
    }

    /// 400: the request as a whole is at fault.
    pub fn bad_request(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// 400: the prompt leaves no room in the context.
    pub fn context_exceeded(param: &str, prompt: usize, context: usize) -> ApiError {
        let message = format!("the prompt has {prompt} tokens, but the context holds {context}{}", beside(param));
        let context = Some(Box::new([prompt, context]));
        ApiError { code: Some("context_length_exceeded"), context, ..ApiError::invalid(param, message) }
    }

    /// As [`ApiError::context_exceeded`], of a text that is too long to be worth counting its tokens.
    pub fn context_far_exceeded(param: &str, least: usize, context: usize) -> ApiError {
        let error = ApiError::context_exceeded(param, least, context);
        let message =
            format!("the prompt has at least {least} tokens, but the context holds {context}{}", beside(param));
        ApiError { message, ..error }
    }

    /// 400: what the model's files make of a request. Paths of this machine are nobody's business.
    pub fn of_model(param: &str, error: LlmError) -> ApiError {
        let message = match error {
            LlmError::Template { reason, .. } => format!("the chat template {reason}"),
            LlmError::Tokenizer { reason, .. } => reason,
            other => other.to_string(),
        };
        ApiError::invalid(param, message)
    }

    /// 401.
    pub fn unauthorized() -> ApiError {
        let message = "give an API key of this server as `Authorization: Bearer KEY`";
        ApiError {
            code: Some("invalid_api_key"),
            ..ApiError::new(StatusCode::UNAUTHORIZED, "authentication_error", message)
        }
    }

    /// 403.
    pub fn forbidden(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::FORBIDDEN, "permission_error", message)
    }

    /// 404: no such route.
    pub fn no_route(path: &str) -> ApiError {
        let path: String = path.chars().take(100).collect();
        ApiError::new(StatusCode::NOT_FOUND, "not_found_error", format!("there is no {path}"))
    }

    /// 404: no such model.
    pub fn no_model<'a>(name: &str, served: impl Iterator<Item = &'a String>) -> ApiError {
        let name: String = name.chars().take(100).collect();
        let served: Vec<String> = served.take(MAX_LISTED).map(|name| format!("{name:?}")).collect();
        let message = match &*served {
            [one] => format!("the model {name:?} is not served here; {one} is"),
            all => format!("the model {name:?} is not served here; these are: {}", all.join(", ")),
        };
        ApiError {
            code: Some("model_not_found"),
            param: Some("model".into()),
            ..ApiError::new(StatusCode::NOT_FOUND, "invalid_request_error", message)
        }
    }

    /// 405.
    pub fn method(allowed: &str) -> ApiError {
        let message = format!("this route takes {allowed}");
        ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message)
    }

    /// 408: the body did not arrive in time.
    pub fn slow_body() -> ApiError {
        ApiError::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", "the body did not arrive in time")
    }

    /// 413.
    pub fn large_body(limit: usize) -> ApiError {
        let message = format!("the body has more than {limit} bytes");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
    }

    /// 431.
    pub fn large_head(limit: usize) -> ApiError {
        let message = format!("the headers have more than {limit} bytes");
        ApiError::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "invalid_request_error", message)
    }

    /// 501: the server was started without it.
    pub fn not_implemented(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::NOT_IMPLEMENTED, "not_supported_error", message)
    }

    /// 503 with `Retry-After`: full, loading or draining.
    pub fn unavailable(message: impl Into<String>, seconds: u32) -> ApiError {
        ApiError {
            retry_after: Some(seconds),
            ..ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded_error", message)
        }
    }

    /// 500: a defect of the server, or a device that failed.
    pub fn internal(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// The error in OpenAI's form.
    pub fn openai(&self) -> Value {
        let mut error = json!({ "message": self.message, "type": self.kind, "param": self.param, "code": self.code });
        if let Some([prompt, context]) = self.context.as_deref() {
            // llama.cpp's names.
            error["n_prompt_tokens"] = (*prompt).into();
            error["n_ctx"] = (*context).into();
        }
        json!({ "error": error })
    }
}

/// What a context must hold beside a prompt; a text to embed has no reply.
fn beside(param: &str) -> &'static str {
    if param.starts_with("input") { "" } else { ", one of them for the reply" }
}
