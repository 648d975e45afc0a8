//! `outrider generate`: one prompt, one answer, no server.

use std::io::Write;

use anyhow::{Context, Result, bail};
use engine::request::{Event, Finish, FinishReason, Request, Sampling, TokenOut};
use serde_json::{Map, json};
use text::{ChatRequest, Delta, Flow, Markers, OutputOptions, OutputParser};

use crate::flags::{GenerateFlags, PoolFlags};
use crate::launch::{self, Launch, LaunchFlags};
use crate::sink;

/// Generates and prints: the text as it comes, or one JSON object at the end.
pub(crate) fn run(flags: &GenerateFlags) -> Result<()> {
    let launch = Launch::prepare(LaunchFlags {
        model: &flags.model,
        pools: &PoolFlags::one_request(),
        speculation: &flags.speculation,
        chat_template: None,
    })?;
    let prompt = prompt(&launch, flags)?;
    let request = request(&launch, flags, prompt);
    launch.plan.fits(request.prompt.len(), flags.max_tokens as usize)?;
    let mut output = OutputParser::new(
        launch.tokenizer.clone(),
        OutputOptions {
            skip_special_tokens: true,
            stop: Vec::new(),
            include_stop: false,
            end_tokens: launch.source.checkpoint().generation().eos_token_ids.clone(),
            reasoning: None,
            tools: None,
            call_id_prefix: String::new(),
        },
    )?;

    let (engine, _) = launch.start(Box::new(|_| {}))?;
    let (sink, events) = sink::events();
    engine.submit(request, sink)?;
    let mut answer = Answer { tokens: Vec::new(), text: String::new(), quiet: flags.json };
    let finish = loop {
        match events.recv().context("the engine ended without an answer")? {
            Event::Tokens(tokens) => answer.take(&mut output, &tokens)?,
            Event::Finished(finish) => break finish,
            Event::Failed(why) => bail!("{why}"),
        }
    };
    let mut deltas = Vec::new();
    output.finish(&mut deltas);
    answer.show(deltas)?;
    if flags.json {
        println!("{}", serde_json::to_string_pretty(&answer.json(&finish))?);
    } else {
        println!();
    }
    Ok(())
}

fn prompt(launch: &Launch, flags: &GenerateFlags) -> Result<Vec<u32>> {
    if !flags.chat {
        let mut ids = launch.tokenizer.prefix_ids().to_vec();
        ids.extend(launch.tokenizer.encode(&flags.prompt, Markers::Parse)?);
        return Ok(ids);
    }
    let template = launch.template.as_ref().context("this model has no chat template")?;
    let messages = [json!({"role": "user", "content": flags.prompt})];
    let kwargs = Map::new();
    let rendered = template.render(ChatRequest {
        messages: &messages,
        tools: &[],
        add_generation_prompt: true,
        kwargs: &kwargs,
    })?;
    Ok(rendered.tokens)
}

fn request(launch: &Launch, flags: &GenerateFlags, prompt: Vec<u32>) -> Request {
    let defaults = launch::default_sampling(launch.source.checkpoint().generation());
    Request {
        id: 0,
        prompt,
        max_tokens: flags.max_tokens,
        sampling: Sampling {
            temperature: flags.temperature.unwrap_or(defaults.temperature),
            seed: flags.seed,
            ..defaults
        },
        boundaries: Vec::new(),
    }
}

/// The answer so far.
struct Answer {
    tokens: Vec<u32>,
    text: String,
    quiet: bool,
}

impl Answer {
    fn take(&mut self, output: &mut OutputParser, tokens: &[TokenOut]) -> Result<()> {
        for token in tokens {
            self.tokens.push(token.id);
            let mut deltas = Vec::new();
            let flow = output.push(token.id, &mut deltas);
            self.show(deltas)?;
            if flow == Flow::Stop {
                break;
            }
        }
        Ok(())
    }

    fn show(&mut self, deltas: Vec<Delta>) -> Result<()> {
        for delta in deltas {
            if let Delta::Content(text) = delta {
                if !self.quiet {
                    print!("{text}");
                }
                self.text.push_str(&text);
            }
        }
        std::io::stdout().flush()?;
        Ok(())
    }

    fn json(&self, finish: &Finish) -> serde_json::Value {
        let reason = match finish.reason {
            FinishReason::Stop { .. } => "stop",
            FinishReason::Length => "length",
            FinishReason::Cancelled | FinishReason::Shutdown => "abort",
        };
        let (t, s) = (&finish.timings, &finish.speculation);
        // The first token comes out of the prefill.
        let n_decoded = finish.n_generated.saturating_sub(1) as f64;
        let per_round = |n: usize| n as f64 / s.n_decode_rounds.max(1) as f64;
        json!({
            "text": self.text,
            "token_ids": self.tokens,
            "finish_reason": reason,
            "usage": {
                "prompt_tokens": finish.n_prompt,
                "completion_tokens": finish.n_generated,
                "total_tokens": finish.n_prompt + finish.n_generated,
            },
            "timings": {
                "prefill_s": t.prefill_s,
                "decode_s": t.decode_s,
                "decode_tok_s": if t.decode_s > 0.0 { n_decoded / t.decode_s } else { 0.0 },
            },
            "speculation": {
                "accept_len": if s.n_decode_rounds > 0 { 1.0 + per_round(s.n_accepted) } else { 0.0 },
                "accept_rate": if s.n_drafted > 0 { s.n_accepted as f64 / s.n_drafted as f64 } else { 0.0 },
                "per_position": s.n_accepted_at.iter().map(|n| per_round(*n)).collect::<Vec<_>>(),
                "verify_rounds": s.n_verify_rounds,
                "drafted": s.n_drafted,
                "accepted": s.n_accepted,
            },
        })
    }
}
