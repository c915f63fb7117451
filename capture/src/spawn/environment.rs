//! The environment of children: that of this process, with the variables of each child.

use std::collections::BTreeMap;
use std::env;
use std::ffi::{CString, NulError, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// The environment of this process at one time, as strings for execve(2).
#[derive(Debug)]
pub(crate) struct BaseEnvironment(BTreeMap<OsString, CString>);

/// The environment of one child.
#[derive(Debug)]
pub(crate) struct Environment<'a> {
    base: &'a BaseEnvironment,
    own: BTreeMap<OsString, (OsString, CString)>,
}

impl BaseEnvironment {
    pub(crate) fn current() -> BaseEnvironment {
        let text = |(name, value): (OsString, OsString)| {
            // The kernel has handed over these strings, so they contain no zero byte.
            let text = variable(&name, &value).ok()?;
            Some((name, text))
        };
        BaseEnvironment(env::vars_os().filter_map(text).collect())
    }

    /// Removes the variables whose names `is_hidden` selects.
    pub(crate) fn hide(&mut self, is_hidden: impl Fn(&OsStr) -> bool) {
        self.0.retain(|name, _| !is_hidden(name));
    }

    /// Returns this environment with the variables `own` added or replaced. If a name occurs more
    /// than once, the last value is used.
    ///
    /// # Errors
    /// A string contains a zero byte.
    pub(crate) fn with(
        &self,
        own: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Environment<'_>, NulError> {
        let own: BTreeMap<OsString, OsString> = own.into_iter().collect();
        let text = |(name, value): (OsString, OsString)| {
            let text = variable(&name, &value)?;
            Ok((name, (value, text)))
        };
        Ok(Environment { base: self, own: own.into_iter().map(text).collect::<Result<_, NulError>>()? })
    }
}

impl Environment<'_> {
    /// Returns the value of a variable.
    pub(crate) fn get(&self, name: &str) -> Option<&OsStr> {
        let name = OsStr::new(name);
        if let Some((value, _)) = self.own.get(name) {
            return Some(value);
        }
        let text = self.base.0.get(name)?.as_bytes();
        text.get(name.len().saturating_add(1)..).map(OsStr::from_bytes)
    }

    /// Returns all variables, as `NAME=VALUE`.
    pub(crate) fn texts(&self) -> impl Iterator<Item = &CString> {
        let base = self.base.0.iter().filter(|(name, _)| !self.own.contains_key(*name));
        base.map(|(_, text)| text).chain(self.own.values().map(|(_, text)| text))
    }
}

fn variable(name: &OsStr, value: &OsStr) -> Result<CString, NulError> {
    let mut text = OsString::with_capacity(name.len().saturating_add(value.len()).saturating_add(2));
    text.push(name);
    text.push("=");
    text.push(value);
    CString::new(text.into_vec())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn own_variables_replace_those_of_the_process_and_the_last_value_is_used() {
        let own = |pairs: &[(&str, &str)]| -> Vec<(OsString, OsString)> {
            pairs.iter().map(|(name, value)| (name.into(), value.into())).collect()
        };
        let texts = [("A", "A=1"), ("B", "B=2=3")];
        let mut base =
            BaseEnvironment(texts.map(|(name, text)| (name.into(), CString::new(text).unwrap())).into());
        let environment = base.with(own(&[("A", "x"), ("C", "y"), ("A", "z")])).unwrap();
        let texts: Vec<&str> = environment.texts().map(|text| text.to_str().unwrap()).collect();
        assert_eq!(texts, ["B=2=3", "A=z", "C=y"]);
        let values = ["A", "B", "C", "D"].map(|name| environment.get(name).and_then(OsStr::to_str));
        assert_eq!(values, [Some("z"), Some("2=3"), Some("y"), None]);
        assert!(base.with(own(&[("A", "x\0")])).is_err());
        base.hide(|name| name == "B");
        assert_eq!(base.with(own(&[])).unwrap().texts().count(), 1);
    }
}
