//! The line about a rank that delays the output of others.

use iof_engine::Remedy;
use iof_proto::{Channel, Rank};

use crate::terminal::message::print_message;

/// Reports a rank that delays all others, with the cause and the engine's remedy.
pub fn report_stalled(rank: Rank, channel: Channel, remedy: Remedy) {
    let cause = match channel {
        Channel::Stdin => "it reads its stdin into memory".to_owned(),
        _ => format!("it writes to {channel} from memory"),
    };
    let outlook = match remedy {
        Remedy::Isolated => "from now on it delays only its own output".to_owned(),
        Remedy::TooMany { limit } => {
            format!("it may happen again, because {limit} streams are isolated already")
        }
        _ => "it may happen again".to_owned(),
    };
    print_message(format_args!(
        "rank {rank} delays the output of all ranks: {cause} that is slow to load, such as a mapped file on a hung \
         file system; {outlook}"
    ));
}
