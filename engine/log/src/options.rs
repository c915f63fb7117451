//! The options of a log request, as its directives set them.

use std::collections::BTreeSet;

use iof_proto::attribute::{self, AttributeError, Given, Place};
use iof_proto::log::key;
use iof_proto::{Failure, Info, Proc, Status};
use jiff::Timestamp;

use crate::channel::ChannelKind;

/// The default syslog priority.
const INFO: u8 = 6;

/// The options of one log request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogOptions {
    /// Log only on the first channel that succeeds. `None`: not specified.
    pub once: Option<bool>,
    /// The syslog priority, 0 to 7.
    pub priority: u8,
    /// The time to show on every channel: that of the event, or that at which the request arrived.
    /// `None`: none was requested.
    pub time: Option<Timestamp>,
    /// Tag each line of the output.
    pub tag: bool,
    /// Write the output as XML.
    pub xml: bool,
    /// The process that the message is from.
    pub source: Option<Proc>,
    /// The requester in readable form, if another engine relayed the request.
    pub relayed: Option<String>,
    /// Defaults for the fields that an email does not set, each key once.
    pub email: Vec<Info>,
    /// The keys of the required styles, which only output channels honour.
    pub(crate) style: Vec<&'static str>,
}

impl Default for LogOptions {
    /// Returns the options of a request without directives.
    fn default() -> LogOptions {
        LogOptions {
            once: None,
            priority: INFO,
            time: None,
            tag: false,
            xml: false,
            source: None,
            relayed: None,
            email: Vec::new(),
            style: Vec::new(),
        }
    }
}

impl LogOptions {
    /// Parses directives. Also returns the keys of the optional directives that were ignored.
    /// Directives in `host_keys` are left to the host and never an error.
    ///
    /// # Errors
    /// A required directive is unknown or has an invalid value.
    pub fn parse(infos: &[Info], host_keys: &BTreeSet<String>) -> Result<(LogOptions, Vec<String>), Failure> {
        let mut options = LogOptions::default();
        let ignored = attribute::read(infos, Place::LogDirective, host_keys, |given| options.apply(given))?;
        Ok((options, ignored))
    }

    fn apply(&mut self, given: Given<'_>) -> Result<(), AttributeError> {
        match given.key() {
            key::PMIX_LOG_ONCE => self.once = Some(given.bool()?),
            key::PMIX_LOG_SYSLOG_PRI => self.priority = given.number()?,
            key::PMIX_LOG_TIMESTAMP => {
                let time = Timestamp::from_second(given.number()?).map_err(|_| given.invalid())?;
                self.time = Some(time);
            }
            key::PMIX_LOG_GENERATE_TIMESTAMP | key::PMIX_LOG_TIMESTAMP_OUTPUT => {
                if given.bool()? {
                    self.time.get_or_insert_with(Timestamp::now);
                }
            }
            key::PMIX_LOG_TAG_OUTPUT => {
                self.tag = given.bool()?;
                self.style.extend((self.tag && given.is_required()).then_some(given.key()));
            }
            key::PMIX_LOG_XML_OUTPUT => {
                self.xml = given.bool()?;
                self.style.extend((self.xml && given.is_required()).then_some(given.key()));
            }
            key::PMIX_LOG_SOURCE => self.source = Some(given.proc()?.clone()),
            key::IOF_LOG_RELAYED => self.relayed = Some(given.text()?.to_owned()),
            key::PMIX_LOG_EMAIL_ADDR
            | key::PMIX_LOG_EMAIL_SENDER_ADDR
            | key::PMIX_LOG_EMAIL_SUBJECT
            | key::PMIX_LOG_EMAIL_SERVER
            | key::PMIX_LOG_EMAIL_SRVR_PORT => {
                if !self.email.iter().any(|field| field.key == given.key()) {
                    self.email.push(given.info().clone());
                }
            }
            _ => return Err(given.unread()),
        }
        Ok(())
    }

    /// Checks that a channel of this kind can honour the required styles. RFC0032 makes a required
    /// directive that is not available an error.
    ///
    /// # Errors
    /// `ERR_NOT_SUPPORTED`: a style is required and the channel has none.
    pub fn check_style(&self, kind: ChannelKind) -> Result<(), Failure> {
        match self.style.first() {
            Some(key) if !kind.has_style() => {
                let reason = format!("{key} applies to stdout and stderr only: do not require it here");
                Err(Failure::new(Status::ERR_NOT_SUPPORTED, reason))
            }
            _ => Ok(()),
        }
    }

    /// Returns the keys of the optional styles that were requested and that none of `kinds`
    /// honours.
    pub fn ignored_by(&self, mut kinds: impl Iterator<Item = ChannelKind>) -> Vec<String> {
        let styles = [(key::PMIX_LOG_TAG_OUTPUT, self.tag), (key::PMIX_LOG_XML_OUTPUT, self.xml)];
        let unstyled = !kinds.any(ChannelKind::has_style);
        let ignored = styles.into_iter().filter(|(key, set)| unstyled && *set && !self.style.contains(key));
        ignored.map(|(key, _)| key.to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(infos: &[Info]) -> Result<(LogOptions, Vec<String>), Failure> {
        LogOptions::parse(infos, &BTreeSet::from(["site.credential".to_owned()]))
    }

    #[test]
    fn the_priority_is_info_by_default_and_0_to_7_otherwise() {
        assert_eq!(parse(&[]).unwrap().0.priority, 6);
        for priority in 0..8u32 {
            let info = Info::required(key::PMIX_LOG_SYSLOG_PRI, priority);
            assert_eq!(u32::from(parse(&[info]).unwrap().0.priority), priority);
        }
        let wrong = Info::new(key::PMIX_LOG_SYSLOG_PRI, 8u32);
        let (options, ignored) = parse(std::slice::from_ref(&wrong)).unwrap();
        assert_eq!((options.priority, &ignored[..]), (6, &[wrong.key.clone()][..]));
        assert_eq!(parse(&[Info { required: true, ..wrong }]).unwrap_err().status, Status::ERR_BAD_PARAM);
    }

    #[test]
    fn the_time_is_the_given_one_or_now_if_a_generated_one_is_requested() {
        assert_eq!(parse(&[]).unwrap().0.time, None);
        let given = Info::required(key::PMIX_LOG_TIMESTAMP, 86_400u64);
        let generate = Info::required(key::PMIX_LOG_GENERATE_TIMESTAMP, true);
        let time = |infos: &[Info]| parse(infos).unwrap().0.time.unwrap().as_second();
        assert_eq!(time(std::slice::from_ref(&given)), 86_400);
        assert_eq!(time(&[given.clone(), generate.clone()]), 86_400);
        assert_eq!(time(&[generate.clone(), given]), 86_400);
        assert!(time(&[generate]) > 1_700_000_000);
        assert!(time(&[Info::required(key::PMIX_LOG_TIMESTAMP_OUTPUT, true)]) > 1_700_000_000);
        assert!(parse(&[Info::required(key::PMIX_LOG_TIMESTAMP, u64::MAX)]).is_err());
    }

    #[test]
    fn unknown_directives_are_ignored_or_an_error_unless_the_host_knows_them() {
        let infos = [Info::new("site.colour", true), Info::required("site.credential", true)];
        assert_eq!(parse(&infos).unwrap().1, ["site.colour"]);
        let failure = parse(&[Info::required("site.colour", true)]).unwrap_err();
        assert_eq!(failure.status, Status::ERR_NOT_SUPPORTED);
    }

    #[test]
    fn a_log_request_honours_exactly_the_directives_of_the_table() {
        let accepts = |info: &Info| parse(std::slice::from_ref(info)).is_ok();
        assert_eq!(attribute::mismatches(&[Place::LogDirective], accepts), []);
        let wrong = parse(&[Info::new(key::PMIX_LOG_ONCE, 1u32)]).unwrap();
        assert_eq!(wrong, (LogOptions::default(), vec![key::PMIX_LOG_ONCE.to_owned()]));
        let failure = parse(&[Info::required(key::PMIX_LOG_ONCE, 1u32)]).unwrap_err();
        assert_eq!(failure.status, Status::ERR_BAD_PARAM, "{failure}");
    }

    #[test]
    fn a_style_no_channel_honours_is_an_error_if_required_and_ignored_if_optional() {
        for key in [key::PMIX_LOG_TAG_OUTPUT, key::PMIX_LOG_XML_OUTPUT] {
            let (required, _) = parse(&[Info::required(key, true)]).unwrap();
            let (optional, _) = parse(&[Info::new(key, true)]).unwrap();
            for kind in [
                ChannelKind::LocalSyslog,
                ChannelKind::GlobalSyslog,
                ChannelKind::Email,
                ChannelKind::JobRecord,
            ] {
                assert_eq!(required.check_style(kind).unwrap_err().status, Status::ERR_NOT_SUPPORTED);
                optional.check_style(kind).unwrap();
            }
            for kind in [ChannelKind::Stdout, ChannelKind::Stderr, ChannelKind::Host] {
                required.check_style(kind).unwrap();
            }
            assert_eq!(optional.ignored_by([ChannelKind::Email].into_iter()), [key]);
            assert_eq!(optional.ignored_by([ChannelKind::Email, ChannelKind::Stdout].into_iter()), [""; 0]);
            assert_eq!(
                required.ignored_by([ChannelKind::Email].into_iter()),
                [""; 0],
                "the channel reports it"
            );
        }
    }
}
