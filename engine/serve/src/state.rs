//! The state that all requests share.

use std::sync::Arc;

use serde::Serialize;
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::access::AccessRules;
use crate::engines::ServedEngines;
use crate::error::ApiError;
use crate::limits::{MAX_FOLLOWERS, MAX_PUSHES};

/// The things that clients may do besides reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Allowed {
    /// Push bytes into the stdin of ranks
    Stdin,
    /// Send signals to ranks
    Signals,
}

/// The state that all requests share.
#[derive(Clone)]
pub struct HttpServer {
    pub engines: Arc<ServedEngines>,
    pub access: Arc<AccessRules>,
    pub allow: Vec<Allowed>,
    /// The slots of the requests that follow output.
    pub followers: Arc<Semaphore>,
    /// The slots of pushes.
    pub pushes: Arc<Semaphore>,
}

impl HttpServer {
    pub fn new(engines: ServedEngines, access: AccessRules, allow: Vec<Allowed>) -> HttpServer {
        HttpServer {
            engines: Arc::new(engines),
            access: Arc::new(access),
            allow,
            followers: Arc::new(Semaphore::new(MAX_FOLLOWERS)),
            pushes: Arc::new(Semaphore::new(MAX_PUSHES)),
        }
    }

    /// Takes the slot of a request that follows output.
    pub fn follower_slot(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        let busy = |_| ApiError::new(503, "too many clients follow output: close one, or try again later");
        Arc::clone(&self.followers).try_acquire_owned().map_err(busy)
    }

    /// Refuses what clients may not do.
    pub fn permit(&self, what: Allowed) -> Result<(), ApiError> {
        let reason = || format!("this server only reads: start it with --allow {}", json!(what));
        self.allow.contains(&what).then_some(()).ok_or_else(|| ApiError::new(403, reason()))
    }
}
