//! Access control: the token, the cookie for which a browser exchanges it, and the headers of requests.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use axum::http::{HeaderMap, HeaderName, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use hmac::digest::InvalidLength;
use hmac::{Hmac, Mac};
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use crate::error::ApiError;

/// The number of bits of a token is eight times this.
const TOKEN_BYTES: usize = 16;

/// Maximum number of bytes of the token file.
const MAX_FILE: u64 = 1024;

/// The file with the token, which is kept with the port between runs.
#[derive(Debug, Serialize, Deserialize)]
pub struct TokenFile {
    pub token: String,
    pub port: u16,
}

impl TokenFile {
    /// Reads the file, if it exists.
    ///
    /// # Errors
    /// It can't be read or understood, or is another user's, or other users can read it.
    pub fn read(path: &Path) -> io::Result<Option<TokenFile>> {
        let file = match OpenOptions::new().read(true).custom_flags(nix::libc::O_NOFOLLOW).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let metadata = file.metadata()?;
        if metadata.uid() != geteuid().as_raw() || metadata.mode() & 0o077 != 0 {
            return Err(io::Error::other("expected your own file with mode 0600: remove it"));
        }
        let mut text = String::new();
        file.take(MAX_FILE).read_to_string(&mut text)?;
        let file: TokenFile = serde_json::from_str(&text)?;
        let is_token =
            file.token.len() == 2 * TOKEN_BYTES && file.token.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_token { Ok(Some(file)) } else { Err(io::Error::other("it has no token: remove it")) }
    }

    /// Returns a new token.
    ///
    /// # Errors
    /// The kernel's random numbers can't be read.
    pub fn new(port: u16) -> io::Result<TokenFile> {
        let mut bytes = [0; TOKEN_BYTES];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(TokenFile { token: hex(&bytes), port })
    }

    /// Replaces the file, which only this user can read.
    ///
    /// # Errors
    /// It can't be written.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let new = path.with_extension("new");
        // What an earlier process that was killed has left.
        let _ = fs::remove_file(&new);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(serde_json::to_string(self)?.as_bytes())?;
        fs::rename(&new, path)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The headers that a request must have.
pub struct AccessRules {
    token: String,
    /// The name of the cookie: servers on other ports of the same host have others.
    cookie: String,
    /// Its value, which does not tell the token.
    session: String,
    /// The origin of the proxy in front of the server.
    proxy: Option<String>,
}

impl AccessRules {
    pub fn new(token: &str, proxy: Option<String>) -> Result<AccessRules, InvalidLength> {
        let derived = |label: &[u8]| {
            let mac = Hmac::<Sha256>::new_from_slice(token.as_bytes())?;
            Ok(hex(&mac.chain_update(label).finalize().into_bytes()))
        };
        let (name, session) = (derived(b"name")?, derived(b"session")?);
        let cookie = format!("iof-serve-{}", name.get(..8).unwrap_or_default());
        Ok(AccessRules { token: token.to_owned(), cookie, session, proxy })
    }

    /// Returns whether the host of a request is this server's. That of another name is refused, whose address an
    /// attacker may have changed to this server's (DNS rebinding).
    fn is_own_host(&self, host: &str) -> bool {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => host,
        };
        ["127.0.0.1", "localhost", "[::1]"].contains(&name) || self.proxy_origin(host).is_some()
    }

    /// Returns the origin of the proxy if the host of a request is the proxy's.
    fn proxy_origin(&self, host: &str) -> Option<&str> {
        self.proxy.as_deref().filter(|proxy| proxy.split_once("://").is_some_and(|(_, own)| own == host))
    }

    /// Checks a request's headers.
    ///
    /// # Errors
    /// It is meant for another server, comes from a page of another one, or shows neither the token nor the cookie.
    pub fn check(&self, method: &Method, headers: &HeaderMap) -> Result<(), ApiError> {
        let forbidden = |reason| Err(ApiError::new(403, reason));
        let host = single(headers, &header::HOST).unwrap_or_default();
        if !self.is_own_host(host) {
            return forbidden("unexpected Host: expected localhost, or the one of --behind-proxy");
        }
        let origin = single(headers, &header::ORIGIN);
        let is_own = |origin: &str| {
            origin.strip_prefix("http://") == Some(host) || self.proxy.as_deref() == Some(origin)
        };
        if origin.is_some_and(|origin| !is_own(origin)) {
            return forbidden("unexpected Origin: expected that of this server's page");
        }
        let credentials = single(headers, &header::AUTHORIZATION).and_then(|value| value.split_once(' '));
        let bearer =
            credentials.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, token)| token);
        if bearer.is_some_and(|token| is_same(token, &self.token)) {
            return Ok(());
        }
        let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut cookies =
            cookies.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
        if !cookies.any(|(name, value)| name == self.cookie && is_same(value, &self.session)) {
            let reason = "open the URL that iof serve printed, or send its token as 'Authorization: Bearer'";
            return Err(ApiError::new(401, reason));
        }
        // A browser sends it with each request that changes something.
        if *method != Method::GET && *method != Method::HEAD && origin.is_none() {
            return forbidden("a request by cookie needs the header Origin");
        }
        Ok(())
    }

    /// Returns the cookie for the token in a URL, and the way to the URL without it.
    pub fn exchange(&self, uri: &Uri, headers: &HeaderMap) -> Option<Response> {
        let token = uri.query()?.strip_prefix("token=").filter(|_| uri.path() == "/")?;
        let host = single(headers, &header::HOST).filter(|host| self.is_own_host(host))?;
        if !is_same(token, &self.token) {
            return None;
        }
        let is_secure = self.proxy_origin(host).is_some_and(|proxy| proxy.starts_with("https:"));
        let secure = if is_secure { "; Secure" } else { "" };
        // Without a path, a browser sends it only below the URL that it sees: a proxy may serve others beside this one.
        let cookie = format!("{}={}; HttpOnly; SameSite=Strict{secure}", self.cookie, self.session);
        let headers = [(header::SET_COOKIE, cookie), (header::LOCATION, "./".into())];
        Some((StatusCode::SEE_OTHER, headers).into_response())
    }
}

/// Returns the value of a header, which is empty if there are several: others may read another one than this server.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok();
    Some(value.filter(|_| values.next().is_none()).unwrap_or_default())
}

/// Compares secrets in a time that does not depend on where they differ.
fn is_same(sent: &str, own: &str) -> bool {
    sent.as_bytes().ct_eq(own.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use axum::http::HeaderValue;

    use super::*;

    const TOKEN: &str = "00112233445566778899aabbccddeeff";

    fn headers(list: &[(&str, &str)]) -> HeaderMap {
        let parse = |(name, value): &(&str, &str)| (name.parse().unwrap(), value.parse().unwrap());
        list.iter().map(parse).collect::<Vec<(HeaderName, HeaderValue)>>().into_iter().collect()
    }

    #[test]
    fn only_the_token_or_the_cookie_from_this_servers_own_page_has_access() {
        let access = AccessRules::new(TOKEN, Some("https://hub.example.org".into())).unwrap();
        let cookie = format!("a=b; {}={}", access.cookie, access.session);
        let bearer = format!("Bearer {TOKEN}");
        let is_let = |method: Method, list: &[(&str, &str)]| access.check(&method, &headers(list)).is_ok();
        for (method, list, expected) in [
            (Method::GET, &[("host", "localhost:1"), ("authorization", &*bearer)][..], true),
            (Method::POST, &[("host", "[::1]:80"), ("authorization", &bearer)], true),
            (
                Method::GET,
                &[("host", "localhost"), ("authorization", &bearer.replace("Bearer", "bearer"))],
                true,
            ),
            (
                Method::GET,
                &[("host", "localhost"), ("authorization", &bearer.replace("Bearer", "Basic"))],
                false,
            ),
            (Method::GET, &[("host", "127.0.0.1"), ("cookie", &cookie)], true),
            (Method::GET, &[("host", "hub.example.org"), ("cookie", &cookie)], true),
            (
                Method::POST,
                &[("host", "localhost:1"), ("cookie", &cookie), ("origin", "http://localhost:1")],
                true,
            ),
            (
                Method::POST,
                &[("host", "hub.example.org"), ("cookie", &cookie), ("origin", "https://hub.example.org")],
                true,
            ),
            (Method::GET, &[("host", "localhost:1")], false),
            (Method::GET, &[("authorization", &bearer)], false),
            (Method::GET, &[("host", "localhost:1"), ("authorization", "Bearer 0")], false),
            (Method::GET, &[("host", "localhost:1"), ("cookie", "iof-serve=0")], false),
            (Method::GET, &[("host", "evil.example.org"), ("authorization", &bearer)], false),
            (Method::GET, &[("host", "localhost.evil.org:1"), ("cookie", &cookie)], false),
            (Method::GET, &[("host", "localhost"), ("host", "evil.org"), ("cookie", &cookie)], false),
            (
                Method::GET,
                &[("host", "localhost:1"), ("cookie", &cookie), ("origin", "http://localhost:2")],
                false,
            ),
            (Method::GET, &[("host", "localhost:1"), ("cookie", &cookie), ("origin", "null")], false),
            (Method::POST, &[("host", "localhost:1"), ("cookie", &cookie)], false),
        ] {
            assert_eq!(is_let(method.clone(), list), expected, "{method} {list:?}");
        }
    }

    #[test]
    fn a_token_in_the_url_is_exchanged_for_a_cookie_and_a_wrong_one_is_not() {
        let access = AccessRules::new(TOKEN, Some("https://hub.example.org".into())).unwrap();
        let exchange = |uri: &str, host| access.exchange(&uri.parse().unwrap(), &headers(&[("host", host)]));
        let response = exchange(&format!("/?token={TOKEN}"), "localhost:1").unwrap();
        assert_eq!(response.status(), StatusCode::SEE_OTHER);
        assert_eq!(response.headers()[header::LOCATION], "./");
        let cookie = response.headers()[header::SET_COOKIE].to_str().unwrap();
        assert!(cookie.ends_with("; HttpOnly; SameSite=Strict") && !cookie.contains(TOKEN), "{cookie}");
        let response = exchange(&format!("/?token={TOKEN}"), "hub.example.org").unwrap();
        assert!(response.headers()[header::SET_COOKIE].to_str().unwrap().ends_with("; Secure"));
        assert!(exchange("/?token=00112233445566778899aabbccddeef0", "localhost:1").is_none());
        assert!(exchange(&format!("/?token={TOKEN}"), "evil.example.org").is_none());
        assert!(exchange(&format!("/jobs?token={TOKEN}"), "localhost:1").is_none());
    }

    #[test]
    fn the_token_file_is_private_and_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        assert!(TokenFile::read(&path).unwrap().is_none());
        let file = TokenFile::new(7).unwrap();
        file.write(&path).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o600);
        let read = TokenFile::read(&path).unwrap().unwrap();
        assert_eq!((read.token.clone(), read.port), (file.token.clone(), 7));
        assert_ne!(TokenFile::new(7).unwrap().token, file.token);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(TokenFile::read(&path).is_err());
        let link = directory.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(TokenFile::read(&link).is_err());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, r#"{"token":"1","port":7}"#).unwrap();
        assert!(TokenFile::read(&path).is_err());
    }
}
