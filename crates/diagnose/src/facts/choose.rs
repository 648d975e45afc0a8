//! Which run, which configuration and which probes speak for which side.

use dialects::log::rate::RateDef;
use dialects::log::{Clock, Time, within_year};
use dialects::{Config, Difference, Engine, Factor, Value};

use super::measure;
use super::side::{Facts, SideView};
use crate::collect::launch::Launch;
use crate::configs::{Found, Origin};
use crate::evidence::{Evidence, Item, Side};
use crate::logs::{Run, Window};
use crate::mechanisms;

/// A configuration and where it was found.
#[derive(Clone, Debug)]
pub struct InForce<'a> {
    /// The settings, filled up with what the run's log resolved.
    pub config: Config,
    /// Where it was found; nothing when only the log's own statements tell it.
    pub found: Option<&'a Found>,
    /// Whether it is taken over from the other side because the process is the same.
    pub same_process: bool,
    /// Whether only single settings are known, so that an absent one says nothing.
    pub fragment: bool,
}

impl InForce<'_> {
    /// The effective value of a factor; of a fragment only what it states, since its defaults are not known.
    pub fn effective(&self, factor: Factor) -> Option<Value> {
        if self.fragment {
            self.config.get(factor).cloned()
        } else {
            dialects::effective::get(&self.config, factor)
        }
    }

    /// `path:line`, for evidence lines.
    pub fn place(&self) -> String {
        self.found.map_or_else(|| "the log's own statements".to_owned(), Found::place)
    }
}

/// Everything that the rules look at.
#[derive(Debug)]
pub struct Case<'a> {
    /// The evidence itself.
    pub evidence: &'a Evidence,
    /// The engine that serves now.
    pub engine: Engine,
    /// Now.
    pub now: SideView<'a>,
    /// Before.
    pub before: SideView<'a>,
    /// Settings that differ, before to now.
    pub differences: Vec<Difference>,
    /// The launch record whose measurement speaks for before, if any.
    pub launch: Option<&'a Item<Launch>>,
    /// Whether both sides are one and the same process.
    pub same_process: bool,
    /// Whether the probes of both sides sent the same.
    pub fixed_probe: bool,
}

impl Case<'_> {
    /// The difference in one factor.
    pub fn difference(&self, factor: Factor) -> Option<&Difference> {
        self.differences.iter().find(|difference| difference.factor() == Some(factor))
    }

    /// Whether one of several factors differs.
    pub fn differs(&self, factors: &[Factor]) -> bool {
        factors.iter().any(|factor| self.difference(*factor).is_some())
    }

    /// The effective value of a factor now.
    pub fn effective_now(&self, factor: Factor) -> Option<Value> {
        self.now.in_force.as_ref()?.effective(factor)
    }

    /// The effective value of a factor before.
    pub fn effective_before(&self, factor: Factor) -> Option<Value> {
        self.before.in_force.as_ref()?.effective(factor)
    }

    /// What the accept rates mean on each side, where the logs print them.
    pub fn rates(&self) -> (Option<RateDef>, Option<RateDef>) {
        let def = |side: &SideView<'_>| {
            let (_, run) = side.run?;
            let engine = side.in_force.as_ref().map(|in_force| in_force.config.engine);
            // The other engines have never printed anything else.
            let usual = engine.is_some_and(|engine| engine != Engine::Sglang)
                && run.windows.iter().any(|window| window.accept_len.is_some());
            run.rate.map(|inferred| inferred.def).or(usual.then_some(RateDef::DraftsOnly))
        };
        (def(&self.before), def(&self.now))
    }
}

/// Lays the evidence out as two sides.
pub(crate) fn case(evidence: &Evidence) -> Case<'_> {
    let now_run = run_of(evidence, Side::Now);
    let before_run = run_of(evidence, Side::Before)
        .filter(|(_, run)| now_run.is_none_or(|(_, now)| !std::ptr::eq(now, *run)));
    let mut now_config = current_config(evidence, now_run);
    let before_config = earlier_config(evidence, before_run, now_config.as_ref());
    let launch = launch_of(evidence, before_config.as_ref());
    let goes_on = now_run.is_none_or(|(_, run)| {
        run.asked.is_none()
            && !run.ready
            && before_config.as_ref().is_none_or(|before| !contradicts(&before.config, run))
    });
    if now_config.is_none() && goes_on {
        // The log goes on without a new start: what ran before still runs.
        now_config =
            before_config.clone().map(|in_force| InForce { same_process: true, ..in_force });
    }
    let now_config = now_config.or_else(|| fragment(now_run));
    let same_process = now_config.as_ref().is_some_and(|c| c.same_process);
    let (mut before_config, mut now_config) = (before_config, now_config);
    add_environment(evidence, before_config.as_mut(), &|found| {
        !found.origin.is_current() || found.side == Side::Before
    });
    add_environment(evidence, now_config.as_mut(), &|found| {
        found.origin.is_current() && found.side != Side::Before
    });
    let differences = match (&before_config, &now_config) {
        (Some(before), Some(now)) if !same_process => {
            let mut differences = before.config.differences(&now.config);
            if now.fragment {
                differences.retain(|difference| {
                    difference.b.is_some() && now.config.settings.contains_key(&difference.key)
                });
            }
            differences
        }
        _ => Vec::new(),
    };
    let engine = now_config
        .as_ref()
        .map(|c| c.config.engine)
        .or_else(|| evidence.logs.iter().rev().find_map(|log| log.what.engine))
        .or_else(|| evidence.scrapes.iter().find_map(|scrape| scrape.what.engine))
        .unwrap_or(Engine::Sglang);

    let mut now = view(evidence, Side::Now, now_run, now_config);
    let mut before = view(evidence, Side::Before, before_run, before_config);
    let fixed_probe = match (now.probes.first(), before.probes.first()) {
        (Some(a), Some(b)) => a.what.workload.comparable(&b.what.workload),
        _ => false,
    };
    // Where only one side has a log, the chunks of the same probe are what both sides measured alike.
    let by_chunks = fixed_probe && now.run.is_some() != before.run.is_some();
    for (view, side, launch) in [(&mut now, Side::Now, None), (&mut before, Side::Before, launch)] {
        if by_chunks {
            measure::chunks(view);
        }
        measure::side(evidence, view, side, launch);
    }
    measure::both(&mut before, &mut now, fixed_probe);
    Case { evidence, engine, now, before, differences, launch, same_process, fixed_probe }
}

/// The launch record whose measurement speaks for before: the one of the configuration itself, else the last measured.
fn launch_of<'a>(evidence: &'a Evidence, before: Option<&InForce<'_>>) -> Option<&'a Item<Launch>> {
    let found = before.and_then(|before| before.found);
    let rank = |item: &Item<Launch>| {
        let what = &item.what;
        let measured = what.aggregate_tok_s.is_some() || what.decode_tok_s.is_some();
        let same = found.is_some_and(|f| f.path == item.source && f.time == what.time);
        (measured, same)
    };
    evidence.launches.iter().filter(|item| item.side != Side::After).max_by(|a, b| {
        let by_time = a.what.time.partial_cmp(&b.what.time);
        rank(a).cmp(&rank(b)).then(by_time.unwrap_or(std::cmp::Ordering::Equal))
    })
}

fn view<'a>(
    evidence: &'a Evidence,
    side: Side,
    run: Option<(&'a str, &'a Run)>,
    in_force: Option<InForce<'a>>,
) -> SideView<'a> {
    let labelled = |s: Side| s == side || (side == Side::Now && s == Side::Open);
    let mut probes: Vec<_> = evidence.probes.iter().filter(|item| labelled(item.side)).collect();
    // Without labels the last probe is now and the ones before it are before.
    if probes.is_empty() && side == Side::Before {
        let open: Vec<_> = evidence.probes.iter().filter(|item| item.side == Side::Open).collect();
        probes = open.split_last().map_or_else(Vec::new, |(_, rest)| rest.to_vec());
    }
    let gpu = evidence
        .gpus
        .iter()
        .rfind(|item| labelled(item.side))
        .map(|item| (item.source.as_str(), &item.what));
    let windows = run.map(|(_, run)| users_windows(run, &probes)).unwrap_or_default();
    SideView {
        in_force,
        run,
        windows,
        probes,
        tables: evidence.tables.iter().filter(|item| labelled(item.side)).collect(),
        gpu,
        facts: Facts::default(),
    }
}

/// Windows without those that a probe made: close to its time and with its concurrency. When nothing else is left, the
/// probe's own windows are what the log has.
fn users_windows<'a>(
    run: &'a Run,
    probes: &[&Item<crate::collect::probe::Probe>],
) -> Vec<&'a Window> {
    let made_by_probe = |window: &Window| {
        probes.iter().any(|probe| {
            let probe = &probe.what;
            let (Some(t), Some(taken), Some(concurrency)) =
                (window.t, probe.taken_at, probe.workload.concurrency)
            else {
                return false;
            };
            let total: f64 = probe.requests.iter().map(|request| request.e2e_s).sum();
            let reach = total / concurrency.max(1.0) + 60.0;
            // Some stamps have no year: both are compared by their place in it.
            let of_year = |s: f64| within_year(Time { s, clock: Clock::Date });
            let near = (of_year(t) - of_year(taken)).abs() < reach;
            near && f64::from(window.running) >= 0.75 * concurrency
        })
    };
    let users: Vec<&Window> = run.working().filter(|window| !made_by_probe(window)).collect();
    if users.len() >= 3 { users } else { run.working().collect() }
}

/// The run that speaks for a side: the last one with windows of the logs that its folder names; without such folders the
/// last run of all is now, and the last different one before it is before.
fn run_of(evidence: &Evidence, side: Side) -> Option<(&str, &Run)> {
    let labelled: Vec<(&str, &Run)> = Evidence::of(&evidence.logs, side)
        .flat_map(|item| item.what.runs.iter().map(|run| (item.source.as_str(), run)))
        .collect();
    let last_with_windows =
        |runs: &[(&'_ str, &'_ Run)]| runs.iter().rposition(|(_, run)| !run.windows.is_empty());
    if let Some(i) = last_with_windows(&labelled).or(labelled.len().checked_sub(1)) {
        return Some(labelled[i]);
    }
    let mut open: Vec<(&str, &Run)> = Evidence::of(&evidence.logs, Side::Open)
        .flat_map(|item| item.what.runs.iter().map(|run| (item.source.as_str(), run)))
        .filter(|(_, run)| !run.windows.is_empty())
        .collect();
    open.sort_by(|a, b| {
        let start = |run: &Run| run.span.map_or(f64::NEG_INFINITY, |(start, _)| start);
        start(a.1).total_cmp(&start(b.1))
    });
    match side {
        Side::Now => open.pop(),
        Side::Before => {
            let now: Vec<(&str, &Run)> = Evidence::of(&evidence.logs, Side::Now)
                .flat_map(|item| item.what.runs.iter().map(|run| (item.source.as_str(), run)))
                .filter(|(_, run)| !run.windows.is_empty())
                .collect();
            if now.is_empty() {
                open.pop();
            }
            // A log of now that reaches back before the last start holds the earlier run as well.
            open.pop().or_else(|| now.len().checked_sub(2).map(|i| now[i]))
        }
        _ => None,
    }
}

/// Whether a configuration is the one in the header of a run.
fn heads(found: &Found, (path, run): (&str, &Run)) -> bool {
    found.path == path && found.line.map(u64::from) == Some(run.asked_line.max(1))
}

/// What runs now: the most certain source of this side, filled up with what the run resolved.
fn current_config<'a>(
    evidence: &'a Evidence,
    run: Option<(&'a str, &'a Run)>,
) -> Option<InForce<'a>> {
    let rank = |found: &Found| {
        (found.side != Side::Now, found.origin, std::cmp::Reverse(found.line.unwrap_or(0)))
    };
    let found = evidence
        .configs
        .iter()
        .filter(|found| match found.side {
            Side::Now => true,
            Side::Open => found.origin.is_current(),
            _ => false,
        })
        .filter(|found| found.origin != Origin::LogArgs || run.is_some_and(|run| heads(found, run)))
        // What lies on the disk is not what runs when the log says otherwise.
        .filter(|found| {
            found.side == Side::Now || run.is_none_or(|(_, run)| !contradicts(&found.config, run))
        })
        .min_by_key(|found| rank(found));
    with_command(evidence, found, run)
}

/// A command line does not show its environment; a unit or a compose file that starts the same server does.
fn add_environment(
    evidence: &Evidence,
    in_force: Option<&mut InForce<'_>>,
    speaks: &dyn Fn(&Found) -> bool,
) {
    let Some(in_force) = in_force.filter(|c| !c.config.environment_known && !c.fragment) else {
        return;
    };
    let same_server = |found: &&Found| {
        let engine = in_force.config.engine;
        found.config.engine == engine
            && found.config.environment_known
            && speaks(found)
            && !in_force
                .config
                .differences(&found.config)
                .iter()
                .filter_map(Difference::factor)
                .any(|f| !mechanisms::moves(engine, f).is_empty())
    };
    if let Some(found) = evidence.configs.iter().find(same_server) {
        in_force.config.take_environment(&found.config);
    }
}

/// Whether a log shows that its server did not run with a configuration: another number of verified tokens, another
/// context, a larger running limit.
fn contradicts(config: &Config, run: &Run) -> bool {
    let int = |factor| dialects::effective::get(config, factor).and_then(|value| value.as_f64());
    let differ =
        |a: Option<f64>, b: Option<f64>| a.zip(b).is_some_and(|(a, b)| (a - b).abs() > 0.5);
    let width = run.rate.map(|rate| f64::from(rate.draft_tokens)).or(run.sizes.verify_width);
    let context = config.number(Factor::ModelMaxContext);
    let limit = config.number(Factor::SchedMaxRunning);
    differ(width, int(Factor::SpecDraftTokens))
        || differ(run.sizes.context, context)
        || run.sizes.max_running.zip(limit).is_some_and(|(ran, asked)| ran > asked + 0.5)
}

/// What the log alone tells of a configuration: the draft tokens behind its accept rates, and single stated settings.
fn fragment<'a>(run: Option<(&'a str, &'a Run)>) -> Option<InForce<'a>> {
    let (path, run) = run?;
    let rate = run.rate?;
    let mut config = run.stated.clone().unwrap_or_else(|| Config::new(Engine::Sglang));
    config.state(Factor::SpecDraftTokens, Value::Int(i64::from(rate.draft_tokens)), path);
    config.state(Factor::SpecNumSteps, Value::Int(i64::from(rate.draft_tokens) - 1), path);
    config.state(Factor::SpecTopk, Value::Int(1), path);
    config.state(Factor::SpecMethod, Value::from("mtp"), path);
    Some(InForce { config, found: None, same_process: false, fragment: true })
}

/// A dump tells every value, a command line tells which of them somebody asked for: together they tell both.
fn with_command<'a>(
    evidence: &'a Evidence,
    found: Option<&'a Found>,
    run: Option<(&'a str, &'a Run)>,
) -> Option<InForce<'a>> {
    let mut chosen = in_force(found, run)?;
    if let Some(dump) = found.filter(|found| found.config.whole) {
        let command = evidence.configs.iter().find(|other| {
            matches!(other.origin, Origin::Process | Origin::ProcessList)
                && other.side == dump.side
                && other.config.engine == dump.config.engine
        });
        if let Some(command) = command {
            let mut config = command.config.clone();
            config.fill(&chosen.config);
            chosen = InForce { config, found: Some(command), same_process: false, fragment: false };
        }
    }
    Some(chosen)
}

/// What ran before: what the earlier log or a launch record says, else the most certain trace that differs from now.
fn earlier_config<'a>(
    evidence: &'a Evidence,
    run: Option<(&'a str, &'a Run)>,
    now: Option<&InForce<'a>>,
) -> Option<InForce<'a>> {
    let is_now =
        |found: &Found| now.and_then(|now| now.found).is_some_and(|now| std::ptr::eq(now, found));
    let candidates = || {
        evidence
            .configs
            .iter()
            .filter(|found| matches!(found.side, Side::Before | Side::Open) && !is_now(found))
    };
    let by_date = |found: &&Found| (found.time.map(|t| t as i64), found.line);
    // A log that holds the earlier run holds its arguments too.
    let header = evidence.configs.iter().find(|found| {
        found.origin == Origin::LogArgs
            && !is_now(found)
            && run.is_some_and(|run| heads(found, run))
    });
    if let Some(found) = header {
        // The process that runs now did not write the earlier part of its log.
        return match found.side {
            Side::Before => with_command(evidence, header, run),
            _ => in_force(header, run),
        };
    }
    let differs = |found: &Found, needs_effect: bool| {
        now.is_none_or(|now| {
            let engine = now.config.engine;
            found.config.engine == engine
                && found.config.differences(&now.config).iter().any(|d| {
                    !needs_effect
                        || d.factor().is_some_and(|f| !mechanisms::moves(engine, f).is_empty())
                })
        })
    };
    let strong = candidates()
        .filter(|found| {
            found.side == Side::Before && found.origin.is_current()
                || found.origin == Origin::LaunchRecord
        })
        .filter(|found| found.origin != Origin::LogArgs || run.is_none_or(|run| heads(found, run)))
        .min_by_key(|found| {
            // Of many launches the last one with another configuration is what ran before.
            let same = found.origin == Origin::LaunchRecord && !differs(found, true);
            (found.side != Side::Before, found.origin, same, std::cmp::Reverse(by_date(found)))
        });
    if strong.is_some() || (now.is_none() && run.is_some()) {
        return with_command(evidence, strong, run);
    }
    // A unit that differs from what runs while its backup does not was edited and not put in force yet.
    let pending = |found: &Found| {
        found.origin == Origin::Unit
            && candidates().any(|other| {
                other.origin == Origin::Backup
                    && other.name == found.name
                    && now.is_some_and(|now| other.config.differences(&now.config).is_empty())
            })
    };
    let weak = |needs_effect: bool| {
        candidates()
            .filter(|found| found.origin > Origin::LogArgs && !pending(found))
            .filter(|found| differs(found, needs_effect))
            .min_by_key(|found| {
                (
                    std::cmp::Reverse((found.origin.confidence() * 100.0) as i64),
                    found.origin,
                    std::cmp::Reverse(by_date(found)),
                )
            })
    };
    let weak = weak(true).or_else(|| weak(false));
    in_force(weak, run)
}

fn in_force<'a>(found: Option<&'a Found>, run: Option<(&'a str, &'a Run)>) -> Option<InForce<'a>> {
    let stated = run.and_then(|(_, run)| run.config());
    let config = match (found, stated) {
        (Some(found), Some(stated)) if stated.engine == found.config.engine => {
            let mut config = found.config.clone();
            if !stated.whole {
                config.fill(&stated);
            }
            config.version = config.version.or(stated.version);
            config
        }
        (Some(found), _) => found.config.clone(),
        (None, Some(stated)) => stated,
        (None, None) => return None,
    };
    Some(InForce { config, found, same_process: false, fragment: false })
}
