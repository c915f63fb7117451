//! Log requests (`PMIx_Log`, RFC0010, RFC0032): the choice of channels, and the channels that need
//! no engine.
//!
//! | module | concept |
//! |---|---|
//! | `channel` | the kinds of channels, with their keys and names |
//! | `order` | the preferred channels of requests that name none |
//! | `options` | the options that the directives of a request set |
//! | `plan` | which channels are tried when, and the outcome. Pure data |
//! | `text` | the form of a message on stdout, stderr and in the syslog: tags, times, XML |
//! | `syslog`, `mail`, `record` | the local syslog, a mail server, the job record |
//! | `smtp` | a mail transfer with one deadline and bounded replies |
//! | `mail_server` | the mail server that an engine is configured with |
//! | `stalls` | the servers that stalled recently |
//! | `worker` | a bounded queue with its own thread, for channels that may block |
//!
//! Email needs the feature `mail`, which is off by default.
//!
//! An engine resolves the channels of a request, makes a [`LogPlan`] of them, runs the steps that
//! the plan returns, and reports each result to the plan. A step uses a channel of this crate or
//! one of the engine's.

mod channel;
#[cfg(feature = "mail")]
mod mail;
mod mail_server;
mod options;
mod order;
mod plan;
mod record;
#[cfg(feature = "mail")]
mod smtp;
mod stalls;
mod syslog;
mod text;
mod worker;

pub use channel::{ChannelKind, channel_name};
#[cfg(feature = "mail")]
pub use mail::Mail;
pub use mail_server::{DEFAULT_MAIL_SERVER, MAIL_TIMEOUT, MailServer};
pub use options::LogOptions;
pub use order::{Order, OrderError};
pub use plan::{LogPlan, resolve_channels};
pub use record::{JobRecord, MAX_RECORD};
pub use stalls::{STALL_COOLDOWN, Stalls};
pub use syslog::{PRIORITIES, SYSLOG_SOCKET, Syslog};
pub use text::{LogOrigin, MAX_OUTPUT, output, syslog_line};
pub use worker::{MAX_QUEUED, Worker};
