//! `GET /v1/models` and `/v1/models/{id}`, as either API shows models.

use super::dialect::Dialect;
use super::served::Served;
use serde_json::{Value, json};

/// The model by each of its names.
pub fn list(served: &Served, dialect: Dialect) -> Value {
    let data: Vec<Value> = served.names.iter().map(|name| one(served, name, dialect)).collect();
    match dialect {
        Dialect::OpenAi => json!({"object": "list", "data": data}),
        Dialect::Anthropic => json!({
            "data": data,
            "has_more": false,
            "first_id": served.names.first(),
            "last_id": served.names.last(),
        }),
    }
}

/// The model by one name.
pub fn one(served: &Served, name: &str, dialect: Dialect) -> Value {
    match dialect {
        Dialect::OpenAi => json!({
            "id": name,
            "object": "model",
            "created": served.created,
            "owned_by": "millstream",
            "max_model_len": served.context(),
        }),
        Dialect::Anthropic => json!({
            "id": name,
            "type": "model",
            "display_name": name,
            "created_at": crate::text::utc_text(served.created),
        }),
    }
}
