//! The routes, and the checks of all requests before them.

use axum::Router;
use axum::body::to_bytes;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderName, HeaderValue, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

use crate::api::file;
use crate::error::ApiError;
use crate::limits::MAX_STDIN;
use crate::state::HttpServer;
use crate::{api, bytes, events, input};

const POLICY: &str = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Headers of all responses. Output is never cached, and a page of it runs no script but the server's.
const HEADERS: [(HeaderName, &str); 5] = [
    (header::CACHE_CONTROL, "no-store"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Returns the router. A test compares its lines with the description of the API.
pub fn router(server: HttpServer) -> Router {
    Router::new()
        .route("/", get(|| file("text/html; charset=utf-8", include_str!("../page/index.html"))))
        .route("/page.css", get(|| file("text/css", include_str!("../page/page.css"))))
        .route("/page.js", get(|| file("text/javascript", include_str!("../page/page.js"))))
        .route("/store.js", get(|| file("text/javascript", include_str!("../page/store.js"))))
        .route("/openapi.json", get(|| file("application/json", include_str!("../openapi.json"))))
        .route("/jobs", get(api::jobs))
        .route("/jobs/{job}", get(api::job))
        .route("/jobs/{job}/events", get(events::events))
        .route("/jobs/{job}/ranks/{rank}/{channel}", get(bytes::bytes))
        .route("/jobs/{job}/stdin", post(input::stdin))
        .route("/jobs/{job}/signal", post(input::signal))
        .layer(DefaultBodyLimit::max(MAX_STDIN))
        .layer(from_fn_with_state(server.clone(), check))
        .with_state(server)
}
/// Checks each request before its route is known, and sets the headers of each response.
pub async fn check(State(server): State<HttpServer>, request: Request, next: Next) -> Response {
    let mut response = match server.access.exchange(request.uri(), request.headers()) {
        Some(redirect) => redirect,
        None => match server.access.check(request.method(), request.headers()) {
            Ok(()) => as_json(next.run(request).await).await,
            Err(error) => error.into_response(),
        },
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Makes an error JSON, as all others are: axum refuses parameters, routes and methods as text.
async fn as_json(response: Response) -> Response {
    let status = response.status();
    let is_json = response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == "application/json");
    if is_json || !status.is_client_error() && !status.is_server_error() {
        return response;
    }
    let (parts, body) = response.into_parts();
    let text = to_bytes(body, MAX_STDIN).await.unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let reason = if text.is_empty() { status.canonical_reason().unwrap_or_default() } else { text.as_ref() };
    let mut error = ApiError::new(status.as_u16(), reason).into_response();
    for (name, value) in &parts.headers {
        if *name != header::CONTENT_TYPE && *name != header::CONTENT_LENGTH {
            error.headers_mut().insert(name, value.clone());
        }
    }
    error
}
