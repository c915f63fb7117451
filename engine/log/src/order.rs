//! The channels of requests that name none, in order of preference.

use std::fmt;
use std::str::FromStr;

use iof_proto::log::key;

use crate::channel::{key_of, names};

/// A list of channels in order of preference, as in `plog_base_order` (RFC0032).
///
/// The text form is a comma-separated list. Each item is a channel's name without `PMIX_LOG_`, in
/// any case, or a key, which contains a dot. The suffix `:req`, or any word that starts with `req`,
/// makes a channel required.
///
/// ```
/// use iof_log::Order;
/// let order: Order = "Local_Syslog:REQUIRED,global_syslog,email".parse()?;
/// assert_eq!(order.to_string(), "pmix.log.lsys:req,pmix.log.gsys,pmix.log.email");
/// # Ok::<(), iof_log::OrderError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order(pub(crate) Vec<Preference>);

/// One channel of an order, by its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Preference {
    pub channel: String,
    pub required: bool,
}

/// The reason why a text is not a valid [`Order`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// An unknown channel name.
    #[error("unknown log channel '{0}': expected {known}, or a key that contains a dot", known = names())]
    Unknown(String),
    /// An unknown flag.
    #[error("invalid flag ':{0}' of a log channel: expected ':req' or none")]
    Flag(String),
}

impl Order {
    /// Returns whether the order contains the channel with this key.
    pub fn contains(&self, channel: &str) -> bool {
        self.0.iter().any(|preference| preference.channel == channel)
    }

    /// Returns the keys of the channels, each with whether it is required.
    pub fn channels(&self) -> impl Iterator<Item = (&str, bool)> {
        self.0.iter().map(|preference| (preference.channel.as_str(), preference.required))
    }
}

impl Default for Order {
    /// Returns all channels that an engine may have, all of them optional. stdout is left out, so
    /// that a terminal does not show each message twice.
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
        for (index, Preference { channel, required }) in self.0.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{channel}{}", if *required { ":req" } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_flags_are_case_insensitive() {
        for flag in ["req", "REQ", "reqd", "Required"] {
            let order: Order = format!("LOCAL_syslog:{flag}, pmix_log_email ,site.x").parse().unwrap();
            assert_eq!(order.to_string(), "pmix.log.lsys:req,pmix.log.email,site.x");
        }
        assert_eq!("".parse::<Order>().unwrap().0, []);
        assert!(Order::default().contains("pmix.log.lsys"));
    }

    #[test]
    fn unknown_channels_and_unknown_flags_are_errors() {
        assert_eq!("mail".parse::<Order>(), Err(OrderError::Unknown("mail".into())));
        assert_eq!("email:opt".parse::<Order>(), Err(OrderError::Flag("opt".into())));
        assert_eq!("email:re".parse::<Order>(), Err(OrderError::Flag("re".into())));
        assert_eq!("email:".parse::<Order>(), Err(OrderError::Flag(String::new())));
        assert_eq!("email:é€".parse::<Order>(), Err(OrderError::Flag("é€".into())));
    }
}
