//! The web page of the admin address in headless Chromium, driven over its `DevTools` pipe.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::common::{ADMIN, Berth, INCREMENT, RPC_INCREMENT, admin, port, request};

/// A browser with one page.
struct Browser {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    last_id: u64,
    session: Option<String>,
    /// What the page did: requests, console lines, exceptions, refusals of the policy.
    events: Vec<Value>,
    _profile: tempfile::TempDir,
}

impl Browser {
    fn start() -> Self {
        let profile = tempfile::tempdir().unwrap();
        // Messages of the pipe are on descriptors 3 and 4.
        let mut shell = Command::new("sh");
        shell.args(["-c", "exec chromium \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1", "chromium"]);
        shell.args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--remote-debugging-pipe",
        ]);
        shell.args(["--no-first-run", "--window-size=1200,900", "--force-device-scale-factor=1"]);
        shell.arg(format!("--user-data-dir={}", profile.path().display())).arg("about:blank");
        let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut browser =
            Self { child, input, output, last_id: 0, session: None, events: Vec::new(), _profile: profile };
        let target = browser.call("Target.createTarget", &json!({ "url": "about:blank" }))["targetId"].clone();
        let session = browser.call("Target.attachToTarget", &json!({ "targetId": target, "flatten": true }));
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), &json!({}));
        }
        browser
    }

    fn call(&mut self, method: &str, params: &Value) -> Value {
        self.last_id += 1;
        let mut message = json!({ "id": self.last_id, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = session.clone().into();
        }
        self.input.write_all(message.to_string().as_bytes()).unwrap();
        self.input.write_all(&[0]).unwrap();
        loop {
            let mut answer = Vec::new();
            self.output.read_until(0, &mut answer).unwrap();
            assert_eq!(answer.pop(), Some(0), "the browser is gone");
            let answer: Value = serde_json::from_slice(&answer).unwrap();
            if answer["id"] == self.last_id {
                assert_eq!(answer["error"], Value::Null, "{method}");
                return answer["result"].clone();
            }
            self.events.push(answer);
        }
    }

    fn open(&mut self, url: &str) {
        self.call("Page.navigate", &json!({ "url": url }));
        self.wait("document.readyState === 'complete'");
    }

    /// The value of an expression in the page.
    fn eval(&mut self, expression: &str) -> Value {
        let params = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let result = self.call("Runtime.evaluate", &params);
        assert_eq!(result["exceptionDetails"], Value::Null, "{expression}");
        result["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    fn wait(&mut self, expression: &str) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.eval(expression) != true {
            if Instant::now() > deadline {
                let text = self.eval("document.body.innerText");
                panic!("{expression} stays false; events {:#?}\nthe page is {}", self.events, text.as_str().unwrap());
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// The addresses that were asked, without those of documents within the browser.
    fn requests(&self) -> Vec<String> {
        let sent = self.events.iter().filter(|event| event["method"] == "Network.requestWillBeSent");
        let urls = sent.map(|event| event["params"]["request"]["url"].as_str().unwrap().to_owned());
        urls.filter(|url| !url.starts_with("data:")).collect()
    }

    /// What the console says, and exceptions.
    fn complaints(&self) -> Vec<&Value> {
        let methods = ["Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"];
        self.events.iter().filter(|event| methods.iter().any(|method| event["method"] == *method)).collect()
    }

    /// Writes the page as it looks to a PNG file.
    fn screenshot(&mut self, file: &Path, scheme: &str) {
        let feature = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.call("Emulation.setEmulatedMedia", &feature);
        let shot = self.call("Page.captureScreenshot", &json!({ "format": "png", "captureBeyondViewport": true }));
        let mut base64 = Command::new("base64");
        let mut base64 =
            base64.arg("-d").stdin(Stdio::piped()).stdout(fs::File::create(file).unwrap()).spawn().unwrap();
        base64.stdin.take().unwrap().write_all(shot["data"].as_str().unwrap().as_bytes()).unwrap();
        assert!(base64.wait().unwrap().success());
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Two ports and a region, calls on both, some refused. `pause` is between calls.
fn busy(berth: &Berth, done: &AtomicBool, pause: Duration) {
    let clients = [berth.client("fpga0"), berth.client("fpga1")];
    for call in 0_u32.. {
        for (client, often) in clients.iter().zip([1, 3]) {
            if call % often == 0 {
                client.send(&request(RPC_INCREMENT, &[0; 32], call, 0));
                client.receive();
            }
        }
        if call % 100 == 0 {
            clients[0].send(&request(1, &[], 1, 0));
            clients[0].receive();
            clients[1].send(b"not a request");
        }
        if done.load(Relaxed) {
            return;
        }
        thread::sleep(pause);
    }
}

fn appliance() -> String {
    let ring = "[port.rpc]\ndispatch = \"ring\"\nworker_cpus = [0]";
    let lease = "[[region]]\nname = \"scratch\"\nkind = \"memory\"\nsize = \"64 MiB\"\n[node]\nstate_dir = \"state\"\n\
                 [control]\nudp = \"127.0.0.1:0\"\nquic = \"127.0.0.1:0\"\n\
                 [[binding]]\nkind = \"nvme\"\nlisten = \"127.0.0.1:0\"\ncpus = [0]\nidle = \"wait\"\n";
    format!("{ADMIN}{lease}{}{}{INCREMENT}", port("fpga0", ""), port("fpga1", ring))
}

#[test]
fn the_page_shows_what_happens_and_asks_nobody_else() {
    let berth = Berth::start(&appliance());
    let origin = format!("http://{}", admin(&berth));
    let mut browser = Browser::start();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let traffic = scope.spawn(|| busy(&berth, &done, Duration::from_millis(1)));
        browser.open(&origin);
        let cell = |row: usize, column: usize| {
            format!("document.querySelector('#ports tbody').rows[{row}].cells[{column}].textContent")
        };
        browser.wait("document.querySelectorAll('#ports tbody tr').length === 3");
        browser.wait("document.getElementById('state').textContent === 'serving'");
        assert_eq!([browser.eval(&cell(0, 0)), browser.eval(&cell(1, 0))], ["fpga0", "fpga1"]);
        // Numbers change, rates and percentiles are there, each loss has its reason.
        let received = browser.eval(&cell(0, 4));
        browser.wait(&format!("{} !== {received}", cell(0, 4)));
        browser.wait(&format!("parseFloat({}) > 0 && /[µm]s$/.test({})", cell(0, 2), cell(0, 8)));
        browser.wait("/fpga0\\s+refused\\s+unknown function/.test(document.getElementById('losses').innerText)");
        browser.wait("/fpga1\\s+dropped\\s+bad magic/.test(document.getElementById('losses').innerText)");
        browser.wait("/ring wait\\s+fpga1/.test(document.getElementById('stages').innerText)");
        browser.wait("/worker0/.test(document.getElementById('threads').innerText)");
        browser.wait("/scratch/.test(document.getElementById('leases').innerText)");
        browser.wait(
            "/berth\\s+0\\s+0\\s+0\\s+0\\s+0\\s+0\\s+0 B\\s+0 B/.test(document.getElementById('nvme').innerText)",
        );
        if let Some(folder) = std::env::var_os("BERTH_SCREENSHOTS") {
            thread::sleep(Duration::from_secs(20));
            for scheme in ["light", "dark"] {
                browser.screenshot(&Path::new(&folder).join(format!("page-{scheme}.png")), scheme);
            }
        }
        done.store(true, Relaxed);
        traffic.join().unwrap();
    });
    // People who do not see it: every table has named columns and rows, every figure a label, nothing is by colour alone.
    let unnamed = "[...document.querySelectorAll('table')].filter(table => !table.querySelector('thead th[scope=col]') || \
                   !table.querySelector('tbody th[scope=row]')).length";
    assert_eq!(browser.eval(unnamed), 0);
    let sections = "[...document.querySelectorAll('section:not([hidden])')].every(section => section.ariaLabel || \
                    section.querySelector('h2, form label'))";
    assert_eq!(browser.eval(sections), true);
    let requests = browser.requests();
    assert!(requests.len() >= 3, "{requests:?}");
    let [page, status] = ["/", "/status"].map(|path| format!("{origin}{path}"));
    assert!(requests.iter().all(|url| *url == page || *url == status), "{requests:?}");
    assert_eq!(browser.complaints(), Vec::<&Value>::new());
    // It says so when the appliance is gone.
    berth.stop();
    browser.wait("document.getElementById('state').textContent.startsWith('does not answer')");
}

#[test]
fn the_page_asks_for_the_token_and_keeps_it_out_of_the_address() {
    let config = format!("[admin]\nlisten = \"127.0.0.1:0\"\ntoken_file = \"token\"\n{}{INCREMENT}", port("fpga0", ""));
    let berth = Berth::start_with(&config, &[("token", "correct-horse-battery\n")]);
    let origin = format!("http://{}/", admin(&berth));
    let mut browser = Browser::start();
    let rows = "document.querySelectorAll('#ports tbody tr').length === 1";
    browser.open(&origin);
    let give = |token: &str| {
        format!("document.getElementById('token').value = '{token}'; document.querySelector('form').requestSubmit()")
    };
    browser.wait("!document.getElementById('ask').hidden && document.getElementById('live').hidden");
    browser.eval(&give("wrong-horse-battery"));
    browser.wait("document.getElementById('refused').textContent === 'This is not its token.'");
    browser.eval(&give("correct-horse-battery"));
    browser.wait(rows);
    // Behind a #, it is not sent as part of the address, and does not stay there.
    browser.open("about:blank");
    browser.open(&format!("{origin}#token=correct-horse-battery"));
    browser.wait(&format!("location.href === '{origin}' && {rows}"));
    assert!(browser.requests().iter().all(|url| !url.contains("correct")));
    berth.stop();
}
