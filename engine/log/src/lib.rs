//! Log requests (`PMIx_Log`, RFC0010, RFC0032): what goes where, and the channels that need no engine.
//!
//! | module | concept |
//! |---|---|
//! | `channel` | the channels, by their keys and by their names |
//! | `order` | the channels of requests that name none |
//! | `how` | what the directives of a request ask for |
//! | `course` | which channels are tried when, and what that comes to. Pure data |
//! | `text` | how a message looks on stdout and stderr, with tags, times and XML |
//! | `syslog`, `mail`, `record` | a message on its way to the local syslog, to a mail server, into the job record |
//! | `smtp`, `stalls` | how a mail is handed over within a time and with bounds; which servers have stalled |
//! | `worker` | a bounded queue with a thread of its own, for channels that may take their time |
//!
//! Whoever serves requests plans a [`Course`], carries out the steps that it names, each with one of the channels here or
//! with one of its own, and tells it what became of them.

mod channel;
mod course;
mod how;
mod mail;
mod order;
mod record;
mod smtp;
mod stalls;
mod syslog;
mod text;
mod worker;

pub use channel::Kind;
pub use course::{Course, plan};
pub use how::How;
pub use mail::{DEFAULT_MAIL_SERVER, MAIL_PATIENCE, Mail, MailServer};
pub use order::{Order, OrderError};
pub use record::{JobRecord, MAX_RECORD};
pub use stalls::{STALL_REST, Stalls};
pub use syslog::{PRIORITIES, SYSLOG_SOCKET, Syslog};
pub use text::{MAX_OUTPUT, Origin, output, syslog_line};
pub use worker::{MAX_QUEUED, Worker};
