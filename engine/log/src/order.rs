//! The channels of requests that name none, in the order of preference.

use std::fmt;
use std::str::FromStr;

use iof_proto::log::key;

use crate::channel::{key_of, names};

/// An order of channels, as `plog_base_order` has it (RFC0032): names with commas, in any case, of what follows
/// `PMIX_LOG_`, each with `:req` if it is required (or any word that begins so).
///
/// ```
/// use iof_log::Order;
/// let order: Order = "Local_Syslog:REQUIRED,global_syslog,email".parse()?;
/// assert_eq!(order.to_string(), "pmix.log.lsys:req,pmix.log.gsys,pmix.log.email");
/// # Ok::<(), iof_log::OrderError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order(pub(crate) Vec<Preference>);

/// One channel of an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Preference {
    /// The key.
    pub channel: String,
    pub required: bool,
}

/// Why a text is no order.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// A name that no channel has.
    #[error("'{0}' is no log channel: say {known}, or a key with a dot in it", known = names())]
    Unknown(String),
    /// A flag that is none.
    #[error("':{0}' is no flag of a log channel: say :req, or nothing")]
    Flag(String),
}

impl Order {
    /// Whether it has this channel, by its key.
    pub fn has(&self, channel: &str) -> bool {
        self.0.iter().any(|of| of.channel == channel)
    }

    /// The keys of its channels, and whether each is required.
    pub fn channels(&self) -> impl Iterator<Item = (&str, bool)> {
        self.0.iter().map(|of| (of.channel.as_str(), of.required))
    }
}

impl Default for Order {
    /// All that an engine may have, none required. Of the two outputs stderr alone, so that nobody reads everything twice.
    fn default() -> Order {
        let channels = [
            key::PMIX_LOG_LOCAL_SYSLOG,
            key::PMIX_LOG_GLOBAL_SYSLOG,
            key::PMIX_LOG_EMAIL,
            key::PMIX_LOG_JOB_RECORD,
            key::PMIX_LOG_STDERR,
        ];
        let optional = |channel: &str| Preference { channel: channel.to_owned(), required: false };
        Order(channels.map(optional).into())
    }
}

impl FromStr for Order {
    type Err = OrderError;

    fn from_str(text: &str) -> Result<Order, OrderError> {
        let channel = |word: &str| {
            let (name, flag) = match word.split_once(':') {
                Some((name, flag)) => (name.trim(), Some(flag.trim())),
                None => (word, None),
            };
            let channel = key_of(name).ok_or_else(|| OrderError::Unknown(name.to_owned()))?;
            let is_required = |flag: &str| flag.get(..3).is_some_and(|word| word.eq_ignore_ascii_case("req"));
            match flag {
                Some(flag) if !is_required(flag) => Err(OrderError::Flag(flag.to_owned())),
                flag => Ok(Preference { channel, required: flag.is_some() }),
            }
        };
        let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
        words.map(channel).collect::<Result<Vec<_>, _>>().map(Order)
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, Preference { channel, required }) in self.0.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            write!(f, "{comma}{channel}{}", if *required { ":req" } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_flags_are_understood_in_any_case() {
        for flag in ["req", "REQ", "reqd", "Required"] {
            let order: Order = format!("LOCAL_syslog:{flag}, pmix_log_email ,site.x").parse().unwrap();
            assert_eq!(order.to_string(), "pmix.log.lsys:req,pmix.log.email,site.x");
        }
        assert_eq!("".parse::<Order>().unwrap().0, []);
        assert!(Order::default().has("pmix.log.lsys"));
    }

    #[test]
    fn what_is_no_channel_and_what_is_no_flag_is_an_error() {
        assert_eq!("mail".parse::<Order>(), Err(OrderError::Unknown("mail".into())));
        assert_eq!("email:opt".parse::<Order>(), Err(OrderError::Flag("opt".into())));
        assert_eq!("email:re".parse::<Order>(), Err(OrderError::Flag("re".into())));
        assert_eq!("email:".parse::<Order>(), Err(OrderError::Flag(String::new())));
        assert_eq!("email:é€".parse::<Order>(), Err(OrderError::Flag("é€".into())));
    }
}
