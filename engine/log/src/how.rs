//! What the directives of a request ask for.

use std::collections::BTreeSet;

use iof_proto::log::key;
use iof_proto::{Failure, Info, InfoValue, Proc, Status};
use jiff::Timestamp;

use crate::channel::Kind;
use crate::syslog::severity;

/// The highest port.
const MAX_PORT: u64 = 65_535;
/// The least grave priority, and the usual one.
const DEBUG: u64 = 7;
const INFO: u8 = 6;

/// How a message is to be logged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct How {
    /// On the first channel only that takes it; `None` if nothing was said.
    pub once: Option<bool>,
    /// The priority at the syslog, below 8.
    pub priority: u8,
    /// When it happened, or when the request came, if either was asked for: every channel says so.
    pub time: Option<Timestamp>,
    /// Output is tagged.
    pub tag: bool,
    /// Output is XML.
    pub xml: bool,
    /// Whose message it is.
    pub source: Option<Proc>,
    /// It comes from another engine, which was asked for it by somebody: by whom, in words.
    pub relayed: Option<String>,
    /// What an email has that does not say something else, each key once.
    pub email: Vec<Info>,
    /// The keys of what is required, and what outputs alone can honour.
    pub(crate) style: Vec<&'static str>,
}

impl Default for How {
    /// As nothing is said of it.
    fn default() -> How {
        How {
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

impl How {
    /// Understands directives, and gives the keys of the optional ones that can't be honoured. `theirs` are the host's.
    ///
    /// # Errors
    /// A required one can't be honoured.
    pub fn read(infos: &[Info], theirs: &BTreeSet<String>) -> Result<(How, Vec<String>), Failure> {
        let mut how = How::default();
        let mut ignored = Vec::new();
        for info in infos {
            match how.take(info) {
                Ok(()) => {}
                Err(_) if theirs.contains(&info.key) => {}
                Err(failure) if info.required => return Err(failure),
                Err(_) => ignored.push(info.key.clone()),
            }
        }
        Ok((how, ignored))
    }

    fn take(&mut self, info: &Info) -> Result<(), Failure> {
        let bad = |wanted: &str| {
            let reason = format!("the value of {} is no {wanted}: change it, or leave it out", info.key);
            Failure { status: Status::ERR_BAD_PARAM, reason }
        };
        match (info.key.as_str(), &info.value) {
            (key::PMIX_LOG_ONCE, InfoValue::Bool(once)) => self.once = Some(*once),
            (key::PMIX_LOG_SYSLOG_PRI, InfoValue::Number(priority @ 0..=DEBUG)) => {
                self.priority = u8::try_from(*priority).unwrap_or(INFO);
            }
            (key::PMIX_LOG_SYSLOG_PRI, _) => {
                return Err(bad(&format!("priority: say 0 ({}) to {DEBUG} (debug)", severity(0))));
            }
            (key::PMIX_LOG_TIMESTAMP, InfoValue::Number(seconds)) => {
                let time = i64::try_from(*seconds).ok().and_then(|time| Timestamp::from_second(time).ok());
                self.time = Some(time.ok_or_else(|| bad("time"))?);
            }
            (
                key::PMIX_LOG_GENERATE_TIMESTAMP | key::PMIX_LOG_TIMESTAMP_OUTPUT,
                InfoValue::Bool(generate),
            ) => {
                if *generate {
                    self.time.get_or_insert_with(Timestamp::now);
                }
            }
            (key::PMIX_LOG_TAG_OUTPUT, InfoValue::Bool(tag)) => {
                self.tag = *tag;
                self.style.extend((*tag && info.required).then_some(key::PMIX_LOG_TAG_OUTPUT));
            }
            (key::PMIX_LOG_XML_OUTPUT, InfoValue::Bool(xml)) => {
                self.xml = *xml;
                self.style.extend((*xml && info.required).then_some(key::PMIX_LOG_XML_OUTPUT));
            }
            (key::PMIX_LOG_SOURCE, InfoValue::Proc(source)) => self.source = Some(source.clone()),
            (key::IOF_LOG_RELAYED, InfoValue::Text(by)) => self.relayed = Some(by.clone()),
            (
                key::PMIX_LOG_EMAIL_ADDR
                | key::PMIX_LOG_EMAIL_SENDER_ADDR
                | key::PMIX_LOG_EMAIL_SUBJECT
                | key::PMIX_LOG_EMAIL_SERVER,
                InfoValue::Text(_),
            )
            | (key::PMIX_LOG_EMAIL_SRVR_PORT, InfoValue::Number(1..=MAX_PORT)) => {
                if !self.email.iter().any(|of| of.key == info.key) {
                    self.email.push(info.clone());
                }
            }
            (
                key::PMIX_LOG_ONCE
                | key::PMIX_LOG_GENERATE_TIMESTAMP
                | key::PMIX_LOG_TAG_OUTPUT
                | key::PMIX_LOG_TIMESTAMP_OUTPUT
                | key::PMIX_LOG_XML_OUTPUT,
                _,
            ) => return Err(bad("bool")),
            (
                key::PMIX_LOG_EMAIL_ADDR
                | key::PMIX_LOG_EMAIL_SENDER_ADDR
                | key::PMIX_LOG_EMAIL_SUBJECT
                | key::PMIX_LOG_EMAIL_SERVER
                | key::IOF_LOG_RELAYED,
                _,
            ) => return Err(bad("text")),
            (key::PMIX_LOG_EMAIL_SRVR_PORT, _) => return Err(bad("port")),
            (key::PMIX_LOG_TIMESTAMP, _) => return Err(bad("time")),
            (key::PMIX_LOG_SOURCE, _) => return Err(bad("process")),
            _ => {
                let reason = format!("nobody here knows {:?}: leave it out, or do not require it", info.key);
                return Err(Failure { status: Status::ERR_NOT_SUPPORTED, reason });
            }
        }
        Ok(())
    }

    /// Whether a channel of this kind can do it as required (RFC0032: what is required and not available is an error).
    ///
    /// # Errors
    /// It can't.
    pub fn suits(&self, kind: Kind) -> Result<(), Failure> {
        match self.style.first() {
            Some(key) if !kind.has_style() => {
                let reason = format!("{key} is for stdout and stderr: do not require it here");
                Err(Failure { status: Status::ERR_NOT_SUPPORTED, reason })
            }
            _ => Ok(()),
        }
    }

    /// The keys of what is asked for and can be honoured by none of these.
    pub fn lost_on(&self, mut kinds: impl Iterator<Item = Kind>) -> Vec<String> {
        let asked = [(key::PMIX_LOG_TAG_OUTPUT, self.tag), (key::PMIX_LOG_XML_OUTPUT, self.xml)];
        let nowhere = !kinds.any(Kind::has_style);
        let lost = asked.into_iter().filter(|(key, asked)| nowhere && *asked && !self.style.contains(key));
        lost.map(|(key, _)| key.to_owned()).collect()
    }

    /// The keys that it understands.
    pub fn keys() -> impl Iterator<Item = &'static str> {
        [
            key::PMIX_LOG_ONCE,
            key::PMIX_LOG_SYSLOG_PRI,
            key::PMIX_LOG_TIMESTAMP,
            key::PMIX_LOG_GENERATE_TIMESTAMP,
            key::PMIX_LOG_TAG_OUTPUT,
            key::PMIX_LOG_TIMESTAMP_OUTPUT,
            key::PMIX_LOG_XML_OUTPUT,
            key::PMIX_LOG_SOURCE,
            key::PMIX_LOG_EMAIL_ADDR,
            key::PMIX_LOG_EMAIL_SENDER_ADDR,
            key::PMIX_LOG_EMAIL_SUBJECT,
            key::PMIX_LOG_EMAIL_SERVER,
            key::PMIX_LOG_EMAIL_SRVR_PORT,
        ]
        .into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(infos: &[Info]) -> Result<(How, Vec<String>), Failure> {
        How::read(infos, &BTreeSet::from(["site.credential".to_owned()]))
    }

    #[test]
    fn info_is_the_usual_priority_and_others_are_0_to_7() {
        assert_eq!(read(&[]).unwrap().0.priority, 6);
        for priority in 0..8u32 {
            let info = Info::required(key::PMIX_LOG_SYSLOG_PRI, priority);
            assert_eq!(u32::from(read(&[info]).unwrap().0.priority), priority);
        }
        let wrong = Info::new(key::PMIX_LOG_SYSLOG_PRI, 8u32);
        let (how, ignored) = read(std::slice::from_ref(&wrong)).unwrap();
        assert_eq!((how.priority, &ignored[..]), (6, &[wrong.key.clone()][..]));
        assert_eq!(read(&[Info { required: true, ..wrong }]).unwrap_err().status, Status::ERR_BAD_PARAM);
    }

    #[test]
    fn a_time_is_the_one_that_was_given_or_now_if_one_was_asked_for() {
        assert_eq!(read(&[]).unwrap().0.time, None);
        let given = Info::required(key::PMIX_LOG_TIMESTAMP, 86_400u64);
        let generate = Info::required(key::PMIX_LOG_GENERATE_TIMESTAMP, true);
        let time = |infos: &[Info]| read(infos).unwrap().0.time.unwrap().as_second();
        assert_eq!(time(std::slice::from_ref(&given)), 86_400);
        assert_eq!(time(&[given.clone(), generate.clone()]), 86_400);
        assert_eq!(time(&[generate.clone(), given]), 86_400);
        assert!(time(&[generate]) > 1_700_000_000);
        assert!(time(&[Info::required(key::PMIX_LOG_TIMESTAMP_OUTPUT, true)]) > 1_700_000_000);
        assert!(read(&[Info::required(key::PMIX_LOG_TIMESTAMP, u64::MAX)]).is_err());
    }

    #[test]
    fn what_nobody_knows_is_ignored_or_an_error_and_what_the_host_knows_is_neither() {
        let infos = [Info::new("site.colour", true), Info::required("site.credential", true)];
        assert_eq!(read(&infos).unwrap().1, ["site.colour"]);
        let failure = read(&[Info::required("site.colour", true)]).unwrap_err();
        assert_eq!(failure.status, Status::ERR_NOT_SUPPORTED);
        for key in How::keys() {
            let nonsense = Info::required(key, InfoValue::Text("x".into()));
            let right = [InfoValue::Bool(true), InfoValue::Number(1), InfoValue::Text("x".into())];
            let takes = right.into_iter().any(|value| read(&[Info { value, ..nonsense.clone() }]).is_ok());
            assert!(takes || key == key::PMIX_LOG_SOURCE, "{key}");
        }
    }

    #[test]
    fn values_of_the_wrong_type_are_ignored_or_an_error() {
        for key in How::keys() {
            let text = || InfoValue::Text("x".into());
            let wrong = match key {
                key::PMIX_LOG_EMAIL_ADDR
                | key::PMIX_LOG_EMAIL_SENDER_ADDR
                | key::PMIX_LOG_EMAIL_SUBJECT
                | key::PMIX_LOG_EMAIL_SERVER => InfoValue::Number(1),
                _ => text(),
            };
            let info = Info { key: key.into(), value: wrong, required: false };
            assert_eq!(read(std::slice::from_ref(&info)).unwrap().1, [key]);
            let failure = read(&[Info { required: true, ..info }]).unwrap_err();
            assert_eq!(failure.status, Status::ERR_BAD_PARAM, "{failure}");
        }
        for port in [0, 65_536u32] {
            assert!(read(&[Info::required(key::PMIX_LOG_EMAIL_SRVR_PORT, port)]).is_err());
        }
    }

    #[test]
    fn a_style_that_is_required_is_an_error_where_there_is_none_and_else_ignored_if_nobody_has_one() {
        for key in [key::PMIX_LOG_TAG_OUTPUT, key::PMIX_LOG_XML_OUTPUT] {
            let (required, _) = read(&[Info::required(key, true)]).unwrap();
            let (optional, _) = read(&[Info::new(key, true)]).unwrap();
            for kind in [Kind::LocalSyslog, Kind::GlobalSyslog, Kind::Email, Kind::JobRecord] {
                assert_eq!(required.suits(kind).unwrap_err().status, Status::ERR_NOT_SUPPORTED);
                optional.suits(kind).unwrap();
            }
            for kind in [Kind::Stdout, Kind::Stderr, Kind::Host] {
                required.suits(kind).unwrap();
            }
            assert_eq!(optional.lost_on([Kind::Email].into_iter()), [key]);
            assert_eq!(optional.lost_on([Kind::Email, Kind::Stdout].into_iter()), [""; 0]);
            assert_eq!(required.lost_on([Kind::Email].into_iter()), [""; 0], "the channel says so");
        }
    }
}
