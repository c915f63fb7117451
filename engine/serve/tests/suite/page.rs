//! The page in headless Chromium. Left out with a message where there is none.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use iof_testing::engine::{shell, spec};
use iof_testing::process::Process;
use iof_testing::wait_for;
use nix::libc;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::site::{Server, Site, request};

/// A window of the browser.
struct Browser {
    /// The program that controls it, and ends it.
    _driver: Process,
    host: String,
    session: String,
}

impl Browser {
    /// Starts a browser with a page of a server. Returns `None` without a browser.
    fn open(server: &Server) -> Option<Browser> {
        let mut command = Command::new("chromedriver");
        command.arg("--port=0").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        if Command::new("chromedriver").arg("--version").output().is_err() {
            eprintln!("left out: no chromedriver (apt-get install chromium chromium-driver)");
            return None;
        }
        let mut driver = Process::start_with_its_files(&mut command);
        let mut lines = BufReader::new(driver.stdout()).lines().map_while(Result::ok);
        let port = lines.find_map(|line| {
            let (_, port) = line.split_once("started successfully on port ")?;
            Some(port.trim_end_matches('.').to_owned())
        });
        thread::spawn(move || lines.for_each(drop));
        let host = format!("127.0.0.1:{}", port.expect("the port of chromedriver"));
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--no-proxy-server",
            "--window-size=1200,800",
        ];
        let options = json!({ "goog:chromeOptions": { "args": arguments } });
        let session = call(&host, "POST", "/session", &json!({ "capabilities": { "alwaysMatch": options } }));
        let session = session["sessionId"].as_str().unwrap_or_else(|| panic!("{session}")).to_owned();
        let browser = Browser { _driver: driver, host, session };
        let url = format!("http://{}/?token={}", server.host, server.token);
        browser.call("url", &json!({ "url": url }));
        let address = browser.run("return location.href");
        assert!(!address.as_str().unwrap().contains(&server.token), "{address}");
        Some(browser)
    }

    fn call(&self, what: &str, body: &Value) -> Value {
        call(&self.host, "POST", &format!("/session/{}/{what}", self.session), body)
    }

    /// Runs a script in the page.
    fn run(&self, script: &str) -> Value {
        self.call("execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Waits until a script returns `true`.
    fn wait(&self, what: &str, script: &str) {
        wait_for(what, || (self.run(script) == true).then_some(()));
    }

    fn press(&self, key: &str) {
        let keys = json!([{ "type": "keyDown", "value": key }, { "type": "keyUp", "value": key }]);
        self.call("actions", &json!({ "actions": [{ "type": "key", "id": "keys", "actions": keys }] }));
    }

    /// Keeps a picture of the page in the target folder.
    fn screenshot(&self, name: &str) {
        let picture = call(&self.host, "GET", &format!("/session/{}/screenshot", self.session), &Value::Null);
        let bytes = BASE64_STANDARD.decode(picture.as_str().unwrap()).unwrap();
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::write(&path, bytes).unwrap();
        eprintln!("screenshot: {}", path.display());
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Closes the browser.
        let _ = request(&self.host, &format!("DELETE /session/{}", self.session), &[], b"");
    }
}

fn call(host: &str, method: &str, path: &str, body: &Value) -> Value {
    let body = if *body == Value::Null { String::new() } else { body.to_string() };
    let answer =
        request(host, &format!("{method} {path}"), &["Content-Type: application/json"], body.as_bytes());
    answer.unwrap().json()["value"].clone()
}

/// Returns a shell's wait for a file, which this returns, too.
fn gate(site: &Site) -> (PathBuf, String) {
    let path = site.directory.path().join("gate");
    let wait = format!("while ! test -e {}; do sleep 0.1; done", path.display());
    (path, wait)
}

/// A script of the page's store: whether each of `ranks` ranks has all its `count` lines, once and in order.
fn has_lines(ranks: u32, count: u32) -> String {
    format!(
        "const next = new Map(); \
         for (const line of iof.store.lines) {{ \
           if (line.channel !== 'stdout' || line.gap) continue; \
           const [number] = line.text.split(' '); \
           if (Number(number) !== (next.get(line.rank) ?? 0) + 1) return 'disorder: ' + line.rank + ' ' + line.text; \
           next.set(line.rank, Number(number)); \
         }} \
         return next.size === {ranks} && [...next.values()].every((last) => last === {count})"
    )
}

const HOSTILE: &str = "<script>window.hacked = 1</script><img src=x onerror=\"window.hacked = 1\"> \u{1b}]0;t\u{7}\u{1b}[31mred\u{1b}[0m";

#[test]
fn eight_ranks_are_followed_exactly_while_the_server_is_killed_and_output_is_only_text() {
    let mut site = Site::new(&[]);
    let (gate, wait) = gate(&site);
    fs::write(site.directory.path().join("hostile"), HOSTILE).unwrap();
    let hostile = site.directory.path().join("hostile").display().to_string();
    let script = format!(
        "i=0; while [ $i -lt 200 ]; do i=$((i+1)); echo \"$i of rank $IOF_RANK \u{e9}\"; sleep 0.02; done; \
         {wait}; echo \"201 $(cat {hostile})\"; [ $IOF_RANK != 3 ] || {{ echo broken >&2; exit 9; }}; exec sleep 1000"
    );
    let _job = site.spawn(&spec([shell(&script).ranks(8)]));
    let Some(browser) = Browser::open(&site.server) else { return };
    browser.wait("lines of all ranks", "return new Set(iof.store.lines.map((line) => line.rank)).size === 8");
    site.server.process.signal(Signal::SIGKILL);
    site.server.process.wait();
    browser.wait(
        "the loss",
        "return document.getElementById('status').textContent.startsWith('connection lost')",
    );
    thread::sleep(Duration::from_millis(500));
    site.server = Server::start(site.directory.path(), &[]);
    browser.wait("all lines of all ranks", &has_lines(8, 200));
    fs::write(gate, "").unwrap();
    browser.wait("the last lines", &has_lines(8, 201));
    assert_eq!(
        browser.run("return [iof.store.doubled, iof.store.missing, iof.store.lost]"),
        json!([0, 0, 0])
    );

    browser.wait(
        "the text",
        "return document.getElementById('lines').textContent.includes('<script>window.hacked')",
    );
    let elements = "return document.querySelectorAll('#lines script, #lines img, #ranks img').length";
    assert_eq!(browser.run(elements), 0);
    assert_eq!(browser.run("return window.hacked === undefined"), true);
    let text = browser.run("return document.getElementById('lines').textContent");
    assert!(text.as_str().unwrap().contains(r"\x1b]0;t\x07"), "{text}");
    browser.wait("the colour", "return document.querySelector('#lines .f1')?.textContent === 'red'");

    browser.wait("the failure", "return document.querySelector('#ranks .bad')?.textContent === 'failed'");
    browser.screenshot("serve-8-ranks.png");
    browser.press("e");
    browser.wait(
        "the failed rank",
        "return iof.visible.length > 0 && iof.visible.every((line) => line.rank === 3)",
    );
    assert_eq!(browser.run("return iof.visible.at(-1).text"), "broken");
    browser.press("a");
    browser.run(
        "const box = document.getElementById('search'); box.value = 'of rank 5'; \
                 document.getElementById('only').click(); box.dispatchEvent(new Event('input'))",
    );
    browser.wait(
        "the matches",
        "return iof.visible.length === 200 && iof.visible.every((line) => line.rank === 5)",
    );
    browser.screenshot("serve-search.png");
    assert_eq!(browser.run("return document.documentElement.scrollWidth <= innerWidth"), true);
}

#[test]
fn a_thousand_ranks_are_followed_live() {
    let site = Site::new(&[]);
    let (gate, _) = gate(&site);
    // Without a process for each look at the gate.
    let fifo = gate.display();
    assert!(Command::new("mkfifo").arg(&gate).status().unwrap().success());
    let script =
        format!("echo \"1 of $IOF_RANK\"; read line < {fifo}; echo \"2 of $IOF_RANK\"; exec sleep 1000");
    let Some(browser) = Browser::open(&site.server) else { return };
    let _job = site.spawn(&spec([shell(&script).ranks(1000)]));
    browser.wait("the first lines", &has_lines(1000, 1));
    // Each rank opens the gate and finds its end. Once they have, it can't be opened.
    wait_for("the second lines", || {
        drop(OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(&gate));
        (browser.run(&has_lines(1000, 2)) == true).then_some(())
    });
    assert_eq!(
        browser.run("return [iof.store.doubled, iof.store.missing, iof.store.lost]"),
        json!([0, 0, 0])
    );
    let rows = browser.run("return document.querySelectorAll('#ranks .row').length");
    assert!((1..200).contains(&rows.as_u64().unwrap()), "{rows} rows exist");
    browser.run("document.getElementById('ranks').scrollTop = 1e9");
    browser.wait("the last rank", "return [...document.querySelectorAll('#ranks .row')].some((row) => row.firstChild.textContent === '999')");
    browser.screenshot("serve-1000-ranks.png");
    assert_eq!(browser.run("return document.documentElement.scrollWidth <= innerWidth"), true);
}
