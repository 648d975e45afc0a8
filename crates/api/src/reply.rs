//! What the answers of the two OpenAI routes share: head, usage, extension.

use std::sync::Arc;

use engine::request::SpeculationCounts;
use serde::Serialize;

use crate::error::ApiError;
use crate::fields::Args;
use crate::generation::Tally;
use crate::sampling::Wanted;
use crate::sse::Frames;
use crate::state::{ApiState, unix_seconds};
use crate::wire::{Answer, Extension, Head, Metadata, SpecDetails, Usage};

/// The fields that both routes have and that decide the shape of the answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Common {
    /// Name that the client gave the request.
    pub rid: Option<String>,
    /// Answer with events.
    pub stream: bool,
    /// One last event with the usage.
    pub include_usage: bool,
    /// The usage so far on every event.
    pub continuous_usage: bool,
    /// Report acceptance of drafts.
    pub spec_details: bool,
}

/// Longest name that a client may give a request.
const MAX_RID_LEN: usize = 256;

impl Common {
    /// # Errors
    /// When the fields contradict each other.
    pub(crate) fn read(args: Args<'_>) -> Result<Common, ApiError> {
        let stream = args.flag("stream");
        let options = args.object("stream_options");
        if options.is_some() && !stream {
            let message = "`stream_options` is only for requests with `stream` true.";
            return Err(ApiError::invalid("stream_options", message));
        }
        let option = |name| options.is_some_and(|options| options.flag(name));
        Ok(Common {
            rid: rid(args)?,
            stream,
            include_usage: option("include_usage"),
            continuous_usage: option("continuous_usage_stats"),
            spec_details: args.flag("return_spec_tokens_details"),
        })
    }
}

/// The client's name for the request.
///
/// # Errors
/// When it is empty or too long.
pub(crate) fn rid(args: Args<'_>) -> Result<Option<String>, ApiError> {
    match args.text("rid") {
        Some(rid) if rid.is_empty() || rid.len() > MAX_RID_LEN => {
            let message = format!("`rid` must have 1 to {MAX_RID_LEN} bytes.");
            Err(ApiError::invalid("rid", message))
        }
        rid => Ok(rid.map(str::to_owned)),
    }
}

/// One answer in the making.
pub(crate) struct Reply {
    /// What all routes share.
    pub state: Arc<ApiState>,
    /// Name of the request.
    pub id: String,
    /// Whether control tokens have no text in this answer.
    pub skip_special_tokens: bool,
    created: u64,
    common: Common,
    n: usize,
    seed: u64,
    /// The last counts of each answer that had an event.
    tallies: Vec<Tally>,
}

impl Reply {
    /// A reply named by the client, or with `prefix` and a random number.
    pub(crate) fn new(
        state: &Arc<ApiState>,
        prefix: &str,
        common: &Common,
        wanted: &Wanted,
    ) -> Reply {
        let random = || format!("{prefix}-{:016x}{:016x}", state.random(), state.random());
        Reply {
            id: common.rid.clone().unwrap_or_else(random),
            state: Arc::clone(state),
            skip_special_tokens: wanted.skip_special_tokens,
            created: unix_seconds(),
            common: common.clone(),
            n: wanted.n,
            seed: wanted.sampling.seed,
            tallies: Vec::new(),
        }
    }

    fn head(&self, object: &'static str) -> Head {
        Head {
            id: self.id.clone(),
            object,
            created: self.created,
            model: self.state.options.model.served_name.clone(),
        }
    }

    /// The body of a response that is not streamed.
    pub(crate) fn whole<C: Serialize>(
        &self,
        object: &'static str,
        choices: Vec<C>,
        tallies: &[Tally],
    ) -> Answer<C> {
        Answer {
            head: self.head(object),
            choices,
            usage: Some(Some(Usage::of(tallies, self.n))),
            metadata: Some(Metadata {
                weight_version: self.state.options.model.weight_version.clone(),
                seed: self.seed,
            }),
            sglext: self.common.spec_details.then(|| extension(tallies)),
        }
    }

    /// Takes the counts that came with a piece of answer `index`.
    pub(crate) fn note(&mut self, index: usize, tally: Tally) {
        if self.tallies.len() <= index {
            self.tallies.resize(index + 1, Tally::default());
        }
        self.tallies[index] = tally;
    }

    /// Writes one event.
    pub(crate) fn event<C: Serialize>(
        &self,
        object: &'static str,
        choices: Vec<C>,
        frames: &mut Frames,
    ) {
        let usage = match (self.common.continuous_usage, self.common.include_usage) {
            (true, _) => Some(Some(Usage::of(&self.tallies, self.n))),
            (false, true) => Some(None),
            (false, false) => None,
        };
        frames.json(&self.part(object, choices, usage, None));
    }

    /// Writes what follows the last piece: the extension and the usage, where asked for.
    pub(crate) fn done<C: Serialize>(&self, object: &'static str, frames: &mut Frames) {
        let none = Vec::<C>::new;
        if self.common.spec_details {
            frames.json(&self.part(object, none(), None, Some(extension(&self.tallies))));
        }
        if self.common.include_usage {
            let usage = Usage::of(&self.tallies, self.n);
            frames.json(&self.part(object, none(), Some(Some(usage)), None));
        }
    }

    fn part<C>(
        &self,
        object: &'static str,
        choices: Vec<C>,
        usage: Option<Option<Usage>>,
        sglext: Option<Extension>,
    ) -> Answer<C> {
        Answer { head: self.head(object), choices, usage, metadata: None, sglext }
    }
}

fn extension(tallies: &[Tally]) -> Extension {
    let counts = tallies.iter().map(|tally| -> &SpeculationCounts { &tally.speculation });
    Extension { spec_tokens_details: SpecDetails::of(counts) }
}
