//! The routes: one table, from which requests are dispatched and `/openapi.json` is written.

use std::sync::Arc;

use hologram_llm::Request;
use hyper::{Method, Response, StatusCode};
use serde_json::{Value, json};

use crate::body::{self, Body};
use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::options::{Limits, Part};
use crate::params::Params;
use crate::registry::Lease;
use crate::served::Served;
use crate::server::Shared;
use crate::{anthropic, info, llamacpp, metrics, ollama, openai, openapi, page, responses, slots, tokens, vllm};

/// A request that passed the guard.
pub struct Call {
    /// The server.
    pub shared: Arc<Shared>,
    /// The number of the key, if the server has keys.
    pub tenant: Option<usize>,
    /// The part of the target after `?`.
    pub query: Option<String>,
    /// The body.
    pub body: Vec<u8>,
    /// The name of the body's schema.
    pub accepts: &'static str,
}

/// A request whose model is loaded.
pub struct Ready {
    /// The server.
    pub shared: Arc<Shared>,
    /// Its model.
    pub model: Lease,
    tenant: Option<usize>,
}

/// Takes the model's name from a request's members.
pub fn model_name(fields: &mut Fields) -> Result<Option<String>> {
    fields.text("model")
}

impl Call {
    /// Reads the body, which may take long, beside the threads that serve connections. In between, its model is loaded
    /// if need be.
    ///
    /// # Errors
    /// Those of `name` and `parse`, and when the model is unknown or cannot be loaded.
    pub async fn prepare<T: Send + 'static>(
        self,
        name: fn(&mut Fields) -> Result<Option<String>>,
        parse: impl FnOnce(&Served, &Limits, Fields) -> Result<T> + Send + 'static,
    ) -> Result<(T, Ready)> {
        let Call { shared, tenant, body, accepts, .. } = self;
        shared.models()?;
        let (name, fields) = beside(move || {
            let mut fields = Fields::new(crate::json::object(&body)?).known_as(accepts);
            Ok((name(&mut fields)?, fields))
        })
        .await?;
        let model = shared.models()?.lease(name.as_deref()).await?;
        let (parsed, shared, model) = beside(move || {
            let parsed = parse(&model, &shared.options.limits, fields)?;
            Ok((parsed, shared, model))
        })
        .await?;
        Ok((parsed, Ready { shared, model, tenant }))
    }

    /// The value of `model=` in the query.
    pub fn model_of_query(&self) -> Option<String> {
        self.query_value("model")
    }

    /// The value of a name in the query.
    pub fn query_value(&self, name: &str) -> Option<String> {
        // As forms write it, a plus sign is a blank.
        let value =
            |pair: &str| pair.strip_prefix(name)?.strip_prefix('=').map(|text| unescaped(&text.replace('+', " ")));
        self.query.as_deref()?.split('&').find_map(value)
    }
}

/// Runs work that may take long beside the threads that serve connections.
///
/// # Errors
/// Those of the work, and 500 when it panicked.
pub async fn beside<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| ApiError::internal("the server failed to read the request"))?
}

/// A part of a target with its `%` escapes resolved.
pub fn unescaped(text: &str) -> String {
    let digit = |byte: Option<&u8>| byte.and_then(|b| (*b as char).to_digit(16));
    let (bytes, mut i, mut out) = (text.as_bytes(), 0, Vec::with_capacity(text.len()));
    while i < bytes.len() {
        match (bytes[i], digit(bytes.get(i + 1)), digit(bytes.get(i + 2))) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                i += 3;
            }
            (byte, ..) => {
                out.push(byte);
                i += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

impl Ready {
    /// The engine's request for a reply.
    pub fn request(&self, params: &Params, prompt: Vec<u32>, reply: usize) -> Request {
        let mut request = params.request(prompt, reply);
        request.max_tokens = request.max_tokens.or(self.model.defaults.max_tokens);
        request.tenant = tenant_name(self.tenant, params.salt.as_deref());
        request
    }
}

/// The engine's name for who shares cached prompts: the requests of a key with the same salt.
pub fn tenant_name(key: Option<usize>, salt: Option<&str>) -> Option<String> {
    (key.is_some() || salt.is_some()).then(|| format!("{key:?} {salt:?}"))
}

/// Where a request goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    Page(usize),
    Health,
    Ready,
    Version,
    ServerInfo,
    Load,
    Props,
    Slots,
    Slot(String),
    Metrics,
    OpenApi,
    Models,
    Model(String),
    Chat,
    Completions,
    Embeddings,
    Responses,
    Messages,
    CountTokens,
    OllamaChat,
    OllamaGenerate,
    OllamaShow,
    OllamaRunning,
    OllamaTags,
    Tokenize,
    Detokenize,
    ApplyTemplate,
    Completion,
    Infill,
    InputTokens,
    Embedding,
    Predict,
    Invocations,
}

/// A row of the table.
pub struct Row {
    /// The method.
    pub method: Method,
    /// The path; `{name}` at its end stands for the rest.
    pub path: &'static str,
    /// What it does, for `/openapi.json`.
    pub summary: &'static str,
    route: fn(&str) -> Route,
}

const fn row(method: Method, path: &'static str, route: fn(&str) -> Route, summary: &'static str) -> Row {
    Row { method, path, summary, route }
}

/// All routes.
pub static TABLE: &[Row] = &[
    row(Method::GET, page::FILES[0].0, |_| Route::Page(0), "A page for people"),
    row(Method::GET, page::FILES[1].0, |_| Route::Page(1), "A file of the page"),
    row(Method::GET, page::FILES[2].0, |_| Route::Page(2), "A file of the page"),
    row(Method::GET, page::FILES[3].0, |_| Route::Page(3), "A file of the page"),
    row(Method::GET, page::FILES[4].0, |_| Route::Page(4), "A file of the page"),
    row(Method::GET, page::FILES[5].0, |_| Route::Page(5), "A file of the page"),
    row(Method::GET, "/health", |_| Route::Health, "Whether the process is alive"),
    row(Method::GET, "/ready", |_| Route::Ready, "Whether requests are taken"),
    row(Method::GET, "/version", |_| Route::Version, "The version of the server"),
    row(Method::GET, "/server_info", |_| Route::ServerInfo, "The server, its model and its engine"),
    row(Method::GET, "/load", |_| Route::Load, "The number of requests that are answered, in vLLM's form"),
    row(Method::GET, "/props", |_| Route::Props, "The model's properties, in llama.cpp's form"),
    row(Method::GET, "/slots", |_| Route::Slots, "Places for texts, in llama.cpp's form"),
    row(Method::POST, "/slots/{id}", |id| Route::Slot(id.into()), "Keeps a slot's text in a file, or gets it back"),
    row(Method::GET, "/metrics", |_| Route::Metrics, "Metrics in Prometheus's form, with vLLM's names"),
    row(Method::GET, "/openapi.json", |_| Route::OpenApi, "This document"),
    row(Method::GET, "/v1/models", |_| Route::Models, "The models"),
    row(Method::GET, "/models", |_| Route::Models, "The same, as llama.cpp's clients call it"),
    row(Method::GET, "/v1/models/{model}", |name| Route::Model(name.into()), "A model"),
    row(Method::POST, "/v1/chat/completions", |_| Route::Chat, "Continues a conversation"),
    row(Method::POST, "/chat/completions", |_| Route::Chat, "The same, as llama.cpp's clients call it"),
    row(Method::POST, "/v1/completions", |_| Route::Completions, "Continues texts"),
    row(Method::POST, "/v1/embeddings", |_| Route::Embeddings, "The vectors of texts"),
    row(Method::POST, "/v1/responses", |_| Route::Responses, "Continues a conversation, as items"),
    row(Method::POST, "/responses", |_| Route::Responses, "The same, as llama.cpp's clients call it"),
    row(Method::POST, "/v1/messages", |_| Route::Messages, "Continues a conversation, in Anthropic's form"),
    row(Method::POST, "/v1/messages/count_tokens", |_| Route::CountTokens, "The number of tokens of a conversation"),
    row(Method::POST, "/api/chat", |_| Route::OllamaChat, "Continues a conversation, in Ollama's form"),
    row(Method::POST, "/api/generate", |_| Route::OllamaGenerate, "Answers a prompt, in Ollama's form"),
    row(Method::POST, "/api/show", |_| Route::OllamaShow, "A model, in Ollama's form"),
    row(Method::GET, "/api/ps", |_| Route::OllamaRunning, "The models in memory, in Ollama's form"),
    row(Method::GET, "/api/tags", |_| Route::OllamaTags, "The models, in Ollama's form"),
    row(Method::GET, "/api/version", |_| Route::Version, "The version of the server"),
    row(Method::POST, "/tokenize", |_| Route::Tokenize, "The tokens of a text or a conversation"),
    row(Method::POST, "/detokenize", |_| Route::Detokenize, "The text of tokens"),
    row(Method::POST, "/apply-template", |_| Route::ApplyTemplate, "The text of a conversation"),
    row(Method::POST, "/completion", |_| Route::Completion, "Continues texts, in llama.cpp's form"),
    row(Method::POST, "/completions", |_| Route::Completion, "The same, as llama.cpp's clients call it"),
    row(Method::POST, "/infill", |_| Route::Infill, "Fills a gap in a text, in llama.cpp's form"),
    row(
        Method::POST,
        "/chat/completions/input_tokens",
        |_| Route::InputTokens,
        "The number of tokens of a conversation",
    ),
    row(Method::POST, "/v1/chat/completions/input_tokens", |_| Route::InputTokens, "The same"),
    row(Method::POST, "/embedding", |_| Route::Embedding, "The vectors of texts, in llama.cpp's form"),
    row(Method::POST, "/embeddings", |_| Route::Embedding, "The same, as llama.cpp's clients call it"),
    row(Method::POST, "/predict", |_| Route::Predict, "Several requests in one, in Vertex AI's form"),
    row(Method::GET, "/ping", |_| Route::Health, "Whether the process is alive, as SageMaker calls it"),
    row(Method::POST, "/invocations", |_| Route::Invocations, "A request of OpenAI's form, as SageMaker calls it"),
];

impl Row {
    /// Whether it needs no key.
    pub fn is_open(&self) -> bool {
        // The page asks for the key that its requests need.
        self.path == "/health" || page::FILES.iter().any(|(path, ..)| *path == self.path)
    }

    /// The part of the server that it belongs to, if the server can do without.
    fn part(&self) -> Option<Part> {
        match self.path {
            path if page::FILES.iter().any(|(own, ..)| *own == path) => Some(Part::Page),
            "/slots" | "/slots/{id}" => Some(Part::Slots),
            "/metrics" => Some(Part::Metrics),
            _ => None,
        }
    }

    /// Rejects what the server does without.
    ///
    /// # Errors
    /// 404 for the page, 501 for others.
    pub fn check(&self, without: &[Part]) -> Result<()> {
        match self.part().filter(|part| without.contains(part)) {
            None => Ok(()),
            Some(Part::Page) => Err(ApiError::no_route(self.path)),
            Some(_) => Err(ApiError::not_implemented(format!("this server was started without {}", self.path))),
        }
    }

    /// Whether its requests have a body.
    pub fn takes_body(&self) -> bool {
        self.method == Method::POST
    }
}

/// The route of a path.
///
/// # Errors
/// 404 for an unknown path, 405 for an unknown method of a known one.
pub fn find(method: &Method, path: &str) -> Result<(&'static Row, Route)> {
    // A name never matches a path with its own row.
    let exact = |row: &&Row| row.path == path;
    let named = |row: &&Row| !rest(row, path).is_empty();
    let rows: Vec<&'static Row> = TABLE.iter().filter(exact).collect();
    let rows = if rows.is_empty() { TABLE.iter().filter(named).collect() } else { rows };
    // A response to HEAD is that to GET without its body, which hyper leaves out.
    let method = if method == Method::HEAD { &Method::GET } else { method };
    match rows.iter().find(|row| row.method == *method) {
        Some(row) => Ok((row, (row.route)(rest(row, path)))),
        None if rows.is_empty() => Err(ApiError::no_route(path)),
        None => {
            let methods: Vec<&str> = rows.iter().map(|row| row.method.as_str()).collect();
            Err(ApiError::method(&methods.join(" or ")))
        }
    }
}

/// The part of a path that the row's `{name}` stands for.
fn rest<'p>(row: &Row, path: &'p str) -> &'p str {
    let prefix = row.path.split_once('{').map(|(prefix, _)| prefix);
    prefix.and_then(|prefix| path.strip_prefix(prefix)).unwrap_or("")
}

/// Runs a route.
///
/// # Errors
/// When the request is at fault, or the server cannot serve it.
pub async fn run(route: Route, call: Call) -> Result<Response<Body>> {
    match route {
        Route::Page(file) => Ok(page::get(file)),
        Route::Health => Ok(info::health()),
        Route::Ready => info::ready(&call),
        Route::Version => Ok(info::version()),
        Route::ServerInfo => info::server(&call),
        Route::Load => Ok(info::load(&call)),
        Route::Props => info::props(&call).await,
        Route::Slots => info::slots(&call),
        Route::Slot(id) => slots::run(call, &id).await,
        Route::Metrics => metrics::get(&call),
        Route::OpenApi => Ok(body::json(StatusCode::OK, &openapi::document(&call.shared.options.root_path))),
        Route::Models => openai::models::list(&call),
        Route::Model(name) => openai::models::get(&call, &name),
        Route::Chat => openai::chat::run(call).await,
        Route::Completions => openai::completions::run(call).await,
        Route::Embeddings => openai::embeddings::run(call).await,
        Route::Responses => responses::run(call).await,
        Route::Messages => anthropic::run(call).await,
        Route::CountTokens => anthropic::count(call).await,
        Route::OllamaChat => ollama::chat(call).await,
        Route::OllamaGenerate => ollama::generate(call).await,
        Route::OllamaShow => ollama::show(call).await,
        Route::OllamaRunning => ollama::running(&call),
        Route::OllamaTags => ollama::tags(&call),
        Route::Tokenize => tokens::tokenize(call).await,
        Route::Detokenize => tokens::detokenize(call).await,
        Route::ApplyTemplate => tokens::apply_template(call).await,
        Route::Completion => llamacpp::completion::run(call).await,
        Route::Infill => llamacpp::infill::run(call).await,
        Route::InputTokens => llamacpp::count::run(call).await,
        Route::Embedding => llamacpp::embedding::run(call).await,
        Route::Predict => llamacpp::predict::run(call).await,
        Route::Invocations => vllm::invocations(call).await,
    }
}

/// Whose forms a path's clients expect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// OpenAI's, also of the server's own routes.
    OpenAi,
    /// Anthropic's.
    Anthropic,
    /// Ollama's.
    Ollama,
    /// llama.cpp's.
    LlamaCpp,
}

impl Protocol {
    /// The protocol of a path.
    pub fn of(path: &str) -> Protocol {
        match path {
            "/v1/messages" | "/v1/messages/count_tokens" => Protocol::Anthropic,
            _ if path.starts_with("/api/") => Protocol::Ollama,
            "/completion" | "/completions" | "/infill" | "/embedding" | "/embeddings" | "/predict" => {
                Protocol::LlamaCpp
            }
            // Paths without a version are those of llama.cpp's clients.
            "/chat/completions" | "/chat/completions/input_tokens" => Protocol::LlamaCpp,
            _ => Protocol::OpenAi,
        }
    }

    /// An error in the protocol's form.
    pub fn error(self, error: &ApiError) -> Value {
        match self {
            Protocol::OpenAi => error.openai(),
            Protocol::Anthropic => anthropic::error(error),
            Protocol::Ollama => ollama::error(error),
            Protocol::LlamaCpp => llamacpp::error(error),
        }
    }
}

/// A response that names the server's state.
pub fn status(text: &str) -> Value {
    json!({ "status": text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_found() {
        let status = |method, path| find(&method, path).map(|(_, route)| route).map_err(|e| e.status.as_u16());
        assert_eq!(status(Method::GET, "/health"), Ok(Route::Health));
        assert_eq!(status(Method::HEAD, "/health"), Ok(Route::Health));
        assert_eq!(status(Method::GET, "/v1/models"), Ok(Route::Models));
        assert_eq!(status(Method::GET, "/v1/models/a/b"), Ok(Route::Model("a/b".into())));
        assert_eq!(status(Method::POST, "/v1/models/a"), Err(405));
        assert_eq!(status(Method::GET, "/v1/chat/completions"), Err(405));
        assert_eq!(status(Method::POST, "/chat/completions"), Ok(Route::Chat));
        assert_eq!(status(Method::POST, "/completions"), Ok(Route::Completion));
        assert_eq!(status(Method::GET, "/v1/models/"), Err(404));
        assert_eq!(status(Method::GET, "/"), Ok(Route::Page(0)));
        assert_eq!(status(Method::GET, "/page"), Err(404));
        assert_eq!(status(Method::GET, "/page/"), Err(404));
        assert_eq!(status(Method::GET, "/health/x"), Err(404));
    }
}
