//! What the engine is asked for, and what it answers: requests, events, ends.

/// One sequence to generate. Everything that decides its tokens is in here (and in the weights).
#[derive(Clone, Debug)]
pub struct Request {
    /// Names the request for `cancel`; unique among the live ones.
    pub id: u64,
    /// Token ids of the prompt, at least one.
    pub prompt: Vec<u32>,
    /// Most tokens to generate, at least one. An end token counts.
    pub max_tokens: u32,
    /// How tokens are drawn and what ends the answer.
    pub sampling: Sampling,
    /// Offsets into the prompt where other prompts are likely to branch off (message boundaries),
    /// ascending. The prefix cache keeps the recurrent state exactly at the last one, where the next
    /// turn of a conversation goes on, and at the block edge before others that are far enough apart.
    /// They never change the tokens.
    pub boundaries: Vec<usize>,
}

/// How the token at a position is drawn.
///
/// Order: repetition penalty, presence and frequency penalty, logit bias, the `min_tokens` mask,
/// then temperature, top-k, top-p, min-p, each over what the one before left.
/// The draw at a position is a pure function of logits, these values, the tokens before it and `seed`.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the most likely token (of equals the lowest id); above, at least the smallest normal f32.
    pub temperature: f32,
    /// Keep the most likely tokens whose probabilities first reach this sum; 1 keeps all. In (0, 1].
    pub top_p: f32,
    /// Keep this many most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep tokens at least this likely relative to the most likely one; 0 keeps all. In [0, 1].
    pub min_p: f32,
    /// Positive logits are divided and negative ones multiplied by it, for every token that occurs in
    /// the prompt or in the answer so far; 1 is off. Above 0.
    pub repetition_penalty: f32,
    /// Subtracted from the logit of every token that occurs in the answer so far (not the prompt).
    pub presence_penalty: f32,
    /// Subtracted for each time that the token occurs in the answer so far (not the prompt).
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens, each named once.
    pub logit_bias: Vec<(u32, f32)>,
    /// Key of the noise.
    pub seed: u64,
    /// End and stop tokens cannot be drawn before this many tokens are generated.
    pub min_tokens: u32,
    /// The model's end tokens are ordinary ones; `stop_token_ids` still end the answer.
    pub ignore_eos: bool,
    /// Tokens that end the answer besides the model's end tokens.
    pub stop_token_ids: Vec<u32>,
    /// Report log-probabilities: of the token, and of this many most likely ones.
    pub logprobs: Option<u32>,
}

impl Sampling {
    /// The most likely token at each position and nothing else.
    pub fn greedy() -> Sampling {
        Sampling {
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
            min_tokens: 0,
            ignore_eos: false,
            stop_token_ids: Vec::new(),
            logprobs: None,
        }
    }
}

/// One generated token.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenOut {
    /// Its id.
    pub id: u32,
    /// Its log-probability, when asked for: log-softmax of the raw logits of the target, before
    /// penalties, bias, masks and temperature. The same with speculation on and off.
    pub logprob: Option<f32>,
    /// The most likely tokens and their log-probabilities, falling, of equals the lowest id first.
    pub top: Vec<(u32, f32)>,
}

/// What a sink receives: any number of `Tokens`, then exactly one of the other two, last.
#[derive(Clone, Debug)]
pub enum Event {
    /// The tokens of one step, at least one. A token that ends the answer is the last of them.
    Tokens(Vec<TokenOut>),
    /// The request ended as it should.
    Finished(Finish),
    /// The request could not go on; why, for a person.
    Failed(String),
}

/// Why a sink takes no more tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// Nobody listens any more: the request ends as `Cancelled`.
    Disconnected,
    /// The listener has what it wanted (a stop string): the request ends as `Stop { token: None }`.
    Satisfied,
}

/// Where the events of one request go. Called on the engine's thread.
pub trait EventSink: Send {
    /// Takes an event without ever blocking. The end event is sent whatever was answered before.
    fn send(&mut self, event: Event) -> Result<(), Gone>;
}

/// How and why a request ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Finish {
    /// Why.
    pub reason: FinishReason,
    /// Tokens of the prompt.
    pub n_prompt: usize,
    /// Of these, tokens that came from the prefix cache at the first admission.
    pub n_cached: usize,
    /// Tokens generated; an end or stop token counts.
    pub n_generated: usize,
    /// Where the time went.
    pub timings: Timings,
    /// What speculation did.
    pub speculation: SpeculationCounts,
}

/// Why a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// An end or stop token was drawn, or the sink was satisfied (`token: None`).
    Stop {
        /// The last token generated, if it is what ended the answer.
        token: Option<u32>,
    },
    /// `max_tokens` were generated.
    Length,
    /// The client left, or `cancel` was called.
    Cancelled,
    /// The engine shut down before the request was done.
    Shutdown,
}

/// Where the time of one request went, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timings {
    /// From submission to the first scheduled row, or to the end if there was none.
    pub queue_wait_s: f64,
    /// From the first scheduled row to the first token, or to the end if there was none.
    pub prefill_s: f64,
    /// From the first token to the last.
    pub decode_s: f64,
}

/// What speculation did for one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpeculationCounts {
    /// Decodes, with drafts or without: forward passes that emitted tokens after the first.
    pub n_decode_rounds: usize,
    /// Of these, rounds that verified at least one draft.
    pub n_verify_rounds: usize,
    /// Drafts verified.
    pub n_drafted: usize,
    /// Drafts accepted; a round emits one token more than it accepts.
    pub n_accepted: usize,
    /// Rounds that accepted the draft at index `i`.
    pub n_accepted_at: Vec<usize>,
}
