//! Runners: register, verify, reset and unregister (docs/spec/runner-api.md, section 1).

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode};
use serde_json::{Map, Value};

use super::answer::Refusal;
use super::{Service, decode, empty, header_text, token_from};
use crate::service::ServiceError;
use crate::wire::{RegisterRequest, TokenRequest};

const RUNNER_TOKEN: &str = "runner-token";

/// `POST /runners`: 201.
pub(super) async fn register(
    State(service): State<Service>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Refusal> {
    let mut fields: Map<String, Value> = decode(&body)?;
    join_tags(&mut fields);
    rename(&mut fields, "maintainer_note", "maintenance_note", |note| note)?;
    rename(&mut fields, "active", "paused", |active| Value::Bool(active == Value::Bool(false)))?;
    let mut request: RegisterRequest = serde_json::from_value(Value::Object(fields))
        .map_err(|error| ServiceError::BadRequest(format!("invalid registration: {error}")))?;
    request.token = token_from(request.token, &headers, RUNNER_TOKEN);
    Ok((StatusCode::CREATED, Json(service.register(request).await?)).into_response())
}

fn join_tags(fields: &mut Map<String, Value>) {
    if let Some(tags) = fields.get_mut("tag_list")
        && let Some(list) = tags.as_array()
    {
        let list: Vec<&str> = list.iter().filter_map(Value::as_str).collect();
        *tags = Value::String(list.join(","));
    }
}

/// Accepts a field by its deprecated name. A request with both names is an error, as on GitLab.
fn rename(
    fields: &mut Map<String, Value>,
    old: &str,
    new: &str,
    convert: impl FnOnce(Value) -> Value,
) -> Result<(), ServiceError> {
    let Some(value) = fields.remove(old).filter(|value| !value.is_null()) else { return Ok(()) };
    if fields.insert(new.to_owned(), convert(value)).is_some_and(|other| !other.is_null()) {
        return Err(ServiceError::BadRequest(format!("{new}, {old} are mutually exclusive")));
    }
    Ok(())
}

/// `POST /runners/verify`: 200.
pub(super) async fn verify(
    State(service): State<Service>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Refusal> {
    Ok(Json(service.verify(token_request(&body, &headers)?).await?).into_response())
}

/// `POST /runners/reset_authentication_token`: 201.
pub(super) async fn reset_token(
    State(service): State<Service>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Refusal> {
    let request = token_request(&body, &headers)?;
    Ok((StatusCode::CREATED, Json(service.reset_token(request.token).await?)).into_response())
}

/// `POST /runners/:id/reset_authentication_token`, with a personal access token: 201.
pub(super) async fn reset_token_with_pat(
    State(service): State<Service>,
    Path(runner): Path<i64>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let pat = header_text(&headers, "private-token").unwrap_or_default().to_owned();
    Ok((StatusCode::CREATED, Json(service.reset_token_with_pat(runner, pat).await?)).into_response())
}

/// `DELETE /runners`, with a JSON body: 204.
pub(super) async fn unregister(
    State(service): State<Service>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Refusal> {
    service.unregister(token_request(&body, &headers)?.token).await?;
    Ok(empty(StatusCode::NO_CONTENT))
}

/// `DELETE /runners/managers`, with a JSON body: 204.
pub(super) async fn unregister_manager(
    State(service): State<Service>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Refusal> {
    service.unregister_manager(token_request(&body, &headers)?).await?;
    Ok(empty(StatusCode::NO_CONTENT))
}

fn token_request(body: &Bytes, headers: &HeaderMap) -> Result<TokenRequest, Refusal> {
    let mut request: TokenRequest = if body.is_empty() { TokenRequest::default() } else { decode(body)? };
    request.token = token_from(request.token, headers, RUNNER_TOKEN);
    Ok(request)
}
