//! The conformance suite on epoll.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail this way")]

mod conformance;

const BACKEND: iof_capture::BackendKind = iof_capture::BackendKind::Epoll;
