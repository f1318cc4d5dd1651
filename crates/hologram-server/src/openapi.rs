//! `/openapi.json`, written from the table of routes.

use serde_json::{Map, Value, json};

use crate::routes::TABLE;

/// The document.
pub fn document() -> Value {
    let mut paths = Map::new();
    for row in TABLE {
        let mut operation = json!({
            "summary": row.summary,
            "responses": {
                "200": { "description": "Success" },
                "default": {
                    "description": "An error",
                    "content": { "application/json": { "schema": { "type": "object" } } },
                },
            },
        });
        if row.path.contains('{') {
            let name = row.path.split(['{', '}']).nth(1);
            operation["parameters"] =
                json!([{ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }]);
        }
        if row.takes_body() {
            let content = json!({ "application/json": { "schema": { "type": "object" } } });
            operation["requestBody"] = json!({ "required": true, "content": content });
        }
        if row.is_open() {
            operation["security"] = json!([]);
        }
        let methods = paths.entry(row.path).or_insert_with(|| json!({}));
        methods[row.method.as_str().to_ascii_lowercase()] = operation;
    }
    json!({
        "openapi": "3.1.0",
        "info": { "title": "Hologram", "version": env!("CARGO_PKG_VERSION") },
        "paths": paths,
        "components": { "securitySchemes": { "key": { "type": "http", "scheme": "bearer" } } },
        "security": [{ "key": [] }, {}],
    })
}
