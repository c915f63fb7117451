//! The rate at which output is delivered to a tool of PMIx: as fast as it reads.

use std::time::{Duration, Instant};

use iof_pmix_server::Relay;
use iof_pmix_server::limits::{MAX_PMIX_TOOL_MESSAGES, MAX_PMIX_TOOL_QUEUE};

/// The longest time for which output is waited for that does not arrive at the relay: libpmix has
/// dropped it.
const LOST: Duration = Duration::from_secs(1);

/// The output that was delivered and that the tool's socket has not taken yet. libpmix accepts any
/// amount at any time, and does not tell what it has sent. So output is delivered in batches: the
/// next one follows when the relay has carried as many bytes as the last one had, and libpmix has
/// no more to send.
#[derive(Debug, Default)]
pub struct Pace {
    batch: Option<Batch>,
}

#[derive(Debug)]
struct Batch {
    since: Instant,
    /// The bytes that the relay had carried before.
    carried: u64,
    bytes: usize,
    messages: usize,
    /// Set if no more is added.
    is_sent: bool,
}

impl Pace {
    /// Notes that a message with `bytes` bytes was delivered.
    pub fn delivered(&mut self, bytes: usize, relay: &Relay) {
        let carried = relay.carried();
        let batch = self.batch.get_or_insert_with(|| Batch {
            since: Instant::now(),
            carried,
            bytes: 0,
            messages: 0,
            is_sent: false,
        });
        batch.bytes = batch.bytes.saturating_add(bytes);
        batch.messages = batch.messages.saturating_add(1);
    }

    /// Returns whether the batch has room.
    pub fn has_room(&self) -> bool {
        self.batch.as_ref().is_none_or(|batch| {
            !batch.is_sent && batch.bytes < MAX_PMIX_TOOL_QUEUE && batch.messages < MAX_PMIX_TOOL_MESSAGES
        })
    }

    /// Ends the batch: the next one waits for it.
    pub fn end_batch(&mut self) {
        if let Some(batch) = &mut self.batch {
            batch.is_sent = true;
        }
    }

    /// Begins the next batch if the tool's socket has taken the last one.
    pub fn update(&mut self, relay: &Relay) {
        let has_arrived = |batch: &mut Batch| {
            relay.carried().saturating_sub(batch.carried) >= batch.bytes as u64
                || batch.since.elapsed() >= LOST
        };
        if relay.is_clear() {
            self.batch.take_if(has_arrived);
        }
    }

    /// Returns when to call [`Pace::update`] even if the relay has carried nothing. While the relay
    /// keeps bytes for the tool, the tool's socket tells when.
    pub fn deadline(&self, relay: &Relay) -> Option<Duration> {
        self.batch
            .as_ref()
            .filter(|_| relay.is_clear())
            .map(|batch| LOST.saturating_sub(batch.since.elapsed()))
    }

    /// Returns whether the tool's socket has taken everything.
    pub fn is_clear(&self) -> bool {
        self.batch.is_none()
    }
}
