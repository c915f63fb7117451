//! The errors of requests, as JSON.

use std::fmt;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use iof_proto::Status;
use iof_tool::RequestError;
use serde_json::{Value, json};

/// The reason why a request fails: the status of HTTP, and a JSON object with the text `error`.
#[derive(Debug)]
pub struct ApiError(u16, Value);

impl ApiError {
    pub fn new(status: u16, reason: impl fmt::Display) -> ApiError {
        ApiError(status, json!({ "error": reason.to_string() }))
    }

    /// Returns the error for something in the request that the client can correct.
    pub fn bad(reason: impl fmt::Display) -> ApiError {
        ApiError::new(400, reason)
    }

    /// Returns the error for what this process lacks.
    pub fn failed(reason: impl fmt::Display) -> ApiError {
        ApiError::new(500, reason)
    }

    /// Returns the error for a push that some ranks did not receive as a whole, with its report.
    pub fn partial(report: &Value) -> ApiError {
        let mut value = report.clone();
        value["error"] = "some ranks did not get all bytes".into();
        ApiError(409, value)
    }

    /// Returns the error for bytes that have left the cache.
    pub fn expired(asked: u64, oldest: u64) -> ApiError {
        let error =
            format!("the bytes from offset {asked} are no longer cached: the oldest cached byte is {oldest}");
        ApiError(410, json!({ "error": error, "asked": asked, "oldest": oldest }))
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, json_response(&self.1)).into_response()
    }
}

/// Returns a response with JSON.
pub fn json_response(value: &Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], format!("{value}\n")).into_response()
}

impl From<RequestError> for ApiError {
    fn from(error: RequestError) -> ApiError {
        let status = match &error {
            RequestError::Denied(failure) => match failure.status {
                Status::ERR_NOT_FOUND => 404,
                Status::ERR_OUT_OF_RESOURCE | Status::ERR_RESOURCE_BUSY => 503,
                Status::ERR_UNREACH => 502,
                _ => 409,
            },
            RequestError::Unsendable { .. } => 400,
            _ => 502,
        };
        ApiError::new(status, error)
    }
}
