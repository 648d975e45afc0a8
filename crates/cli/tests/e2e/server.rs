//! The binary as a process: a server that must end well, and commands that run to their end.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::client::Client;

/// What takes longer than this does not come.
const HANGS_AFTER: Duration = Duration::from_secs(60);
const ADDRESS: &str = "listening on http://";

/// The binary with these arguments and nothing from the environment that changes what it does.
pub(crate) fn outrider(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outrider"));
    command.args(arguments).env_remove("OUTRIDER_API_KEY").env("HF_HUB_OFFLINE", "1");
    command.env("XDG_STATE_HOME", env!("CARGO_TARGET_TMPDIR"));
    command
}

/// Runs a command to its end, with lines on its standard input.
pub(crate) fn run(arguments: &[&str], input: &str) -> Output {
    let mut command = outrider(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// The standard output of a command that must succeed.
pub(crate) fn stdout_of(arguments: &[&str], input: &str) -> String {
    let output = run(arguments, input);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// The standard error of a command that must fail.
pub(crate) fn failure_of(arguments: &[&str]) -> String {
    let output = run(arguments, "");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{arguments:?} succeeded: {errors}");
    errors
}

/// Asks for all of these at the same time; answers in the order of the items.
pub(crate) fn at_once<I: Sync, T: Send>(items: &[I], ask: impl Fn(&I) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let ask = &ask;
        let threads: Vec<_> = items.iter().map(|item| scope.spawn(move || ask(item))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Waits until `holds`.
pub(crate) fn eventually(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < HANGS_AFTER, "{what} never came");
        thread::sleep(Duration::from_millis(2));
    }
}

/// A running `outrider serve`; it is stopped, and must stop well, when its test is over.
pub(crate) struct Server {
    child: Child,
    client: Client,
    url: String,
    log: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves the model inside the binary on a free port, with these flags.
    pub(crate) fn start(flags: &[&str]) -> Server {
        let mut command = outrider(&["serve", "--port", "0"]);
        let mut child = command.args(flags).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let log = Arc::new(Mutex::new(String::new()));
        let (told, address) = mpsc::channel();
        let written = log.clone();
        let reader = thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some((_, address)) = line.split_once(ADDRESS) {
                    // Nobody waits for a second address.
                    let _ = told.send(address.to_owned());
                }
                *written.lock().unwrap() += &(line + "\n");
            }
        });
        let address = address.recv_timeout(HANGS_AFTER);
        let address = address.unwrap_or_else(|_| panic!("{flags:?}: {}", log.lock().unwrap()));
        let client = Client::new(address.parse().unwrap());
        Server { child, client, url: format!("http://{address}"), log, reader: Some(reader) }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// What it has logged so far.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// The answer to a request that must succeed.
    pub(crate) fn ok(&self, path: &str, body: &Value) -> Value {
        let reply = self.client.post(path, body);
        assert_eq!(reply.status, 200, "{path} {body}: {}", reply.json());
        reply.json()
    }

    /// Status and message of a request that must be refused.
    pub(crate) fn refused(&self, path: &str, body: &Value) -> (u16, String) {
        let reply = self.client.post(path, body);
        assert!(reply.status >= 400, "{path} {body}: {}", reply.json());
        let message = reply.json()["error"]["message"].as_str().unwrap().to_owned();
        (reply.status, message)
    }

    /// The token ids of a chat with one message, as the template renders it.
    pub(crate) fn chat_ids(&self, message: &str) -> Vec<u32> {
        let messages = [json!({"role": "user", "content": message})];
        ids(&self.ok("/tokenize", &json!({"messages": messages}))["tokens"])
    }

    /// A field of the engine's state: `gauges` or `totals`.
    pub(crate) fn state(&self, field: &str, name: &str) -> u64 {
        let info = self.client.get("/server_info").json();
        let value = &info["internal_states"][0][field][name];
        value.as_u64().unwrap_or_else(|| panic!("no {field}/{name} in {info}"))
    }

    /// A sum since the start.
    pub(crate) fn total(&self, name: &str) -> u64 {
        self.state("totals", name)
    }

    /// Waits until clients that left hold nothing any more; cached prefixes may.
    pub(crate) fn wait_until_idle(&self) {
        eventually("an idle engine", || self.is_idle());
    }

    /// Whether no request holds anything: true as soon as the last answer has been read.
    pub(crate) fn is_idle(&self) -> bool {
        let info = self.client.get("/server_info").json();
        let gauges = &info["internal_states"][0]["gauges"];
        ["n_running", "n_waiting", "n_slots_used"].iter().all(|name| gauges[name] == 0)
            && gauges["n_blocks_used"] == gauges["n_blocks_cached"]
    }

    /// Asks it to end, as a service manager does.
    pub(crate) fn terminate(&self) {
        let kill = format!("kill -TERM {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    /// Waits for its end, which must be a good one; returns its log.
    pub(crate) fn wait(&mut self) -> String {
        let status = self.child.wait().unwrap();
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        let log = self.log();
        assert!(status.success(), "{status}: {log}");
        assert!(log.contains("every request has ended"), "{log}");
        log
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if thread::panicking() {
            // It may have ended already, which is what is wanted.
            let _ = self.child.kill();
            let _ = self.child.wait();
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let tail = lines[lines.len().saturating_sub(20)..].join("\n");
            eprintln!("--- end of the log of the server at {}\n{tail}", self.url);
        } else if self.reader.is_some() {
            self.terminate();
            self.wait();
        }
    }
}

/// A body for `/generate`: a prompt as text or token ids, and sampling parameters.
pub(crate) fn native(prompt: impl Into<Value>, sampling: Value) -> Value {
    let prompt = prompt.into();
    let name = if prompt.is_string() { "text" } else { "input_ids" };
    json!({ name: prompt, "sampling_params": sampling })
}

/// A list of token ids.
pub(crate) fn ids(list: &Value) -> Vec<u32> {
    let list = list.as_array().unwrap_or_else(|| panic!("no list: {list}"));
    list.iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// The token ids of an answer of `/generate`.
pub(crate) fn output(answer: &Value) -> Vec<u32> {
    ids(&answer["output_ids"])
}
