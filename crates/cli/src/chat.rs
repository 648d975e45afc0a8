//! `outrider chat`: a conversation in the terminal, with a model or with a running server.
//!
//! There is one path for both: a model is served on a free loopback port for as long as the chat
//! lasts, and the conversation goes through the API like any client's.

use std::io::{self, BufRead, IsTerminal, Write};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail, ensure};
use eventsource_stream::Eventsource;
use futures_util::StreamExt;
use rustyline::error::ReadlineError;
use serde_json::{Value, json};

use crate::flags::ChatFlags;
use crate::serve;

const HELP: &str = "\
/reset      forget the conversation
/system T   set the system message to T (empty: none) and forget the conversation
/help       this
/exit       leave (so does Ctrl-D)
Ctrl-C cuts an answer short";

/// Runs the conversation until the user leaves.
pub(crate) fn run(flags: &ChatFlags) -> Result<()> {
    let target = flags.target.as_deref().unwrap_or(crate::embedded::NAME);
    let is_url = target.starts_with("http://") || target.starts_with("https://");
    ensure!(
        !is_url || flags.quantization.is_none(),
        "--quantization is for a model that this command loads; the server at {target} has its own"
    );
    let local = if is_url { None } else { Some(serve::start_local(target, flags.quantization)?) };
    let url = match &local {
        Some(server) => server.url(),
        None => target.trim_end_matches('/').trim_end_matches("/v1").to_owned(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut chat = Chat::new(flags, url)?;
    let talk = runtime.block_on(chat.first_contact()).and_then(|()| chat.talk(&runtime));
    if let Some(server) = local {
        server.stop()?;
    }
    talk
}

struct Chat {
    flags: ChatFlags,
    url: String,
    client: reqwest::Client,
    model: String,
    messages: Vec<Value>,
}

/// What one answer was, for the line under it.
#[derive(Default)]
struct Answer {
    content: String,
    n_tokens: u64,
    cut: bool,
}

impl Chat {
    fn new(flags: &ChatFlags, url: String) -> Result<Self> {
        let client = reqwest::Client::builder().build()?;
        let mut chat =
            Self { flags: flags.clone(), url, client, model: String::new(), messages: Vec::new() };
        chat.reset();
        Ok(chat)
    }

    fn reset(&mut self) {
        self.messages.clear();
        if let Some(text) = self.flags.system.as_deref().filter(|t| !t.is_empty()) {
            self.messages.push(json!({"role": "system", "content": text}));
        }
    }

    fn request(&self, method: reqwest::Method, path: &str) -> reqwest::RequestBuilder {
        let request = self.client.request(method, format!("{}{path}", self.url));
        match &self.flags.api_key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    /// Asks for the model's name, which also says that the server is there.
    async fn first_contact(&mut self) -> Result<()> {
        let answer = self
            .request(reqwest::Method::GET, "/v1/models")
            .send()
            .await
            .with_context(|| format!("no server answers at {}", self.url))?;
        let status = answer.status();
        let body: Value = answer.json().await.unwrap_or(Value::Null);
        if !status.is_success() {
            bail!("{} answered {status}: {}", self.url, message_of(&body));
        }
        let name = body["data"][0]["id"].as_str();
        self.model = name.ok_or_else(|| anyhow!("{} lists no model", self.url))?.to_owned();
        Ok(())
    }

    fn talk(&mut self, runtime: &tokio::runtime::Runtime) -> Result<()> {
        let mut input = Input::new()?;
        let mut screen = Screen::new(io::stdout(), io::stdout().is_terminal());
        screen.note(&format!("{} at {}; /help for help", self.model, self.url))?;
        while let Some(line) = input.read()? {
            match line.trim() {
                "" => {}
                "/exit" | "/quit" => break,
                "/help" => screen.note(HELP)?,
                "/reset" => self.reset(),
                text if text == "/system" || text.starts_with("/system ") => {
                    self.flags.system = Some(text["/system".len()..].trim().to_owned());
                    self.reset();
                }
                text if text.starts_with('/') => {
                    screen.note(&format!("no command {text}; /help lists them"))?;
                }
                text => self.exchange(text, runtime, &mut screen)?,
            }
        }
        Ok(())
    }

    /// One message and its answer. A refused message is shown and taken back.
    fn exchange<W: Write>(
        &mut self,
        text: &str,
        runtime: &tokio::runtime::Runtime,
        screen: &mut Screen<W>,
    ) -> Result<()> {
        self.messages.push(json!({"role": "user", "content": text}));
        let started = Instant::now();
        match runtime.block_on(self.answer(screen)) {
            Ok(answer) => {
                let seconds = started.elapsed().as_secs_f64();
                let rate = answer.n_tokens as f64 / seconds.max(1e-9);
                let cut = if answer.cut { ", cut short" } else { "" };
                screen.end()?;
                screen.note(&format!(
                    "{} tokens in {seconds:.1} s ({rate:.0} tok/s){cut}",
                    answer.n_tokens
                ))?;
                self.messages.push(json!({"role": "assistant", "content": answer.content}));
            }
            Err(error) => {
                self.messages.pop();
                screen.end()?;
                screen.note(&format!("{error:#}"))?;
            }
        }
        Ok(())
    }

    async fn answer<W: Write>(&self, screen: &mut Screen<W>) -> Result<Answer> {
        let mut body = json!({
            "model": self.model,
            "messages": self.messages,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        if let Some(temperature) = self.flags.temperature {
            body["temperature"] = json!(temperature);
        }
        if let Some(n) = self.flags.max_tokens {
            body["max_tokens"] = json!(n);
        }
        if self.flags.no_think {
            body["chat_template_kwargs"] = json!({"enable_thinking": false});
        }
        let response =
            self.request(reqwest::Method::POST, "/v1/chat/completions").json(&body).send().await?;
        if !response.status().is_success() {
            let status = response.status();
            let body: Value = response.json().await.unwrap_or(Value::Null);
            bail!("{status}: {}", message_of(&body));
        }
        let mut answer = Answer::default();
        let mut events = response.bytes_stream().eventsource();
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                _ = tokio::signal::ctrl_c() => {
                    answer.cut = true;
                    return Ok(answer);
                }
            };
            let Some(event) = event else { bail!("the server closed the stream early") };
            let data = event.context("the stream broke off")?.data;
            if data == "[DONE]" {
                return Ok(answer);
            }
            let event: Value = serde_json::from_str(&data).context("an event that is not JSON")?;
            if !event["error"].is_null() {
                bail!("{}", message_of(&event));
            }
            let delta = &event["choices"][0]["delta"];
            if let Some(text) = delta["reasoning_content"].as_str() {
                screen.thinking(text)?;
            }
            if let Some(text) = delta["content"].as_str() {
                screen.content(text)?;
                answer.content.push_str(text);
            }
            for call in delta["tool_calls"].as_array().into_iter().flatten() {
                if let Some(name) = call["function"]["name"].as_str() {
                    screen.content(&format!("[calls {name}] "))?;
                }
                screen.content(call["function"]["arguments"].as_str().unwrap_or_default())?;
            }
            if let Some(n) = event["usage"]["completion_tokens"].as_u64() {
                answer.n_tokens = n;
            }
        }
    }
}

/// The message of an error body, whichever of the usual shapes it has.
fn message_of(body: &Value) -> String {
    let message = [&body["error"]["message"], &body["message"], &body["error"]];
    match message.iter().find_map(|m| m.as_str()) {
        Some(message) => message.to_owned(),
        None => body.to_string(),
    }
}

/// Where the user's lines come from: an editor with history on a terminal, else plain lines.
enum Input {
    Editor(Box<rustyline::DefaultEditor>),
    Lines(io::Lines<io::StdinLock<'static>>),
}

impl Input {
    fn new() -> Result<Self> {
        Ok(if io::stdin().is_terminal() && io::stdout().is_terminal() {
            Self::Editor(Box::new(rustyline::DefaultEditor::new()?))
        } else {
            Self::Lines(io::stdin().lock().lines())
        })
    }

    /// The next line, or nothing when the user leaves.
    fn read(&mut self) -> Result<Option<String>> {
        match self {
            Self::Lines(lines) => Ok(lines.next().transpose()?),
            Self::Editor(editor) => match editor.readline("> ") {
                Ok(line) => {
                    editor.add_history_entry(&line)?;
                    Ok(Some(line))
                }
                Err(ReadlineError::Eof | ReadlineError::Interrupted) => Ok(None),
                Err(error) => Err(error.into()),
            },
        }
    }
}

/// What the user sees: thinking and notes dimmed where the output can show it.
struct Screen<W> {
    out: W,
    colour: bool,
    dimmed: bool,
    at_line_start: bool,
}

impl<W: Write> Screen<W> {
    fn new(out: W, colour: bool) -> Self {
        Self { out, colour, dimmed: false, at_line_start: true }
    }

    fn thinking(&mut self, text: &str) -> io::Result<()> {
        self.write(text, true)
    }

    fn content(&mut self, text: &str) -> io::Result<()> {
        if self.dimmed && !text.is_empty() {
            self.end()?;
        }
        self.write(text, false)
    }

    /// Closes the current line.
    fn end(&mut self) -> io::Result<()> {
        self.dim(false)?;
        if !self.at_line_start {
            writeln!(self.out)?;
            self.at_line_start = true;
        }
        Ok(())
    }

    fn note(&mut self, text: &str) -> io::Result<()> {
        self.write(text, true)?;
        self.end()
    }

    fn write(&mut self, text: &str, dimmed: bool) -> io::Result<()> {
        // What a model writes must not steer the terminal.
        let text: String =
            text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect();
        if text.is_empty() {
            return Ok(());
        }
        self.dim(dimmed)?;
        write!(self.out, "{text}")?;
        self.at_line_start = text.ends_with('\n');
        self.out.flush()
    }

    fn dim(&mut self, dimmed: bool) -> io::Result<()> {
        if self.colour && dimmed != self.dimmed {
            write!(self.out, "{}", if dimmed { "\x1b[2m" } else { "\x1b[0m" })?;
        }
        self.dimmed = dimmed;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn screen(colour: bool, play: impl Fn(&mut Screen<&mut Vec<u8>>)) -> String {
        let mut out = Vec::new();
        play(&mut Screen::new(&mut out, colour));
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn thinking_is_dimmed_and_set_apart() {
        let play = |s: &mut Screen<&mut Vec<u8>>| {
            s.thinking("hm").unwrap();
            s.thinking("m").unwrap();
            s.content("yes").unwrap();
            s.end().unwrap();
        };
        assert_eq!(screen(true, play), "\x1b[2mhmm\x1b[0m\nyes\n");
        assert_eq!(screen(false, play), "hmm\nyes\n");
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(screen(true, |s| s.content("a\x1b[31mb\rc\td\n").unwrap()), "a[31mbc\td\n");
    }

    #[test]
    fn error_bodies_of_several_shapes() {
        for body in [
            json!({"error": {"message": "why"}}),
            json!({"message": "why", "code": 400}),
            json!({"error": "why"}),
        ] {
            assert_eq!(message_of(&body), "why");
        }
        assert_eq!(message_of(&Value::Null), "null");
    }
}
