//! `outrider serve`: a model behind the API, until Ctrl-C or SIGTERM.

use std::fs::File;
use std::future::poll_fn;
use std::io::{BufWriter, Write};
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use api::auth::Keys;
use api::state::{ApiOptions, ApiState, ModelInfo, Parsers, SamplingDefaults, Sizes, Timeouts};
use checkpoint::config::LayerKind;
use clap::Parser;
use dialects::ledger::Weights;
use engine::handle::EngineHandle;
use plan::{BLOCK_LEN, Host};
use serde_json::{Map, Value, json};
use telemetry::log_line::{self, Fingerprint, Memory, Pools};
use telemetry::reporter::{self, LastWindow, Recorder, ReporterOptions};
use tokio::sync::oneshot;

use crate::arguments;
use crate::embedded;
use crate::flags::{Cli, Command, Quantization, ServeFlags};
use crate::launch::{self, Launch, LaunchFlags};
use crate::ledger::{self, Launched};
use crate::logging;

const GIB: f64 = (1u64 << 30) as f64;
/// Most connections at once; more wait to be accepted.
const MAX_CONNECTIONS: usize = 1024;

/// Serves until a signal, then drains; `notices` are logged first.
pub(crate) fn run(flags: &ServeFlags, notices: &[String]) -> Result<()> {
    logging::start(&flags.log_level)?;
    notices.iter().for_each(|notice| tracing::warn!("{notice}"));
    let listener = listen(&flags.host, flags.port)?;
    let server = Server::start(flags, listener)?;
    server.serve(async {
        let signal = signal().await;
        tracing::info!("{signal}: no new requests; running ones get {} s", flags.drain_timeout);
        signal
    })
}

/// Takes the port before anything is loaded: one in use is an error at once, not a minute later.
fn listen(host: &str, port: u16) -> Result<TcpListener> {
    let addresses: Vec<SocketAddr> = (host, port)
        .to_socket_addrs()
        .with_context(|| format!("--host {host} is not an address"))?
        .collect();
    let listener = TcpListener::bind(&addresses[..])
        .with_context(|| format!("cannot listen on {host}:{port}; is another server there?"))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Everything that runs behind a listening socket.
struct Server {
    listener: TcpListener,
    state: Arc<ApiState>,
    engine: Arc<EngineHandle>,
    entry: Option<ledger::Entry>,
}

impl Server {
    fn start(flags: &ServeFlags, listener: TcpListener) -> Result<Self> {
        let arguments = arguments::of(flags);
        tracing::info!("{}", arguments::log_line(&arguments));
        let mut launch = Launch::prepare(LaunchFlags {
            model: &flags.model,
            pools: &flags.pools,
            speculation: &flags.speculation,
            chat_template: flags.chat_template.as_deref(),
        })?;
        launch.least_pass = flags.least_pass_ms.map(|ms| Duration::from_millis(ms.into()));
        launch.plan.to_string().lines().for_each(|line| tracing::info!("{line}"));

        let hardware = ledger::hardware(&launch.plan, &flags.model, flags.memory_bandwidth)?;
        let (recorder, last_window) = recorder(flags, &launch)?;
        let (engine, load_s) = launch.start(Box::new(move |step| recorder.record(step)))?;
        log_sizes(&launch, load_s);
        let engine = Arc::new(engine);
        let address = listener.local_addr()?;
        let checkpoint = launch.source.checkpoint();
        let weights = Weights {
            name: launch.source.name.clone(),
            architecture: checkpoint.config().architecture.clone(),
            fingerprint: checkpoint.fingerprint()?,
            load_s,
        };
        let launched = Launched {
            arguments: &arguments,
            plan: &launch.plan,
            weights: weights.clone(),
            hardware: hardware.clone(),
            listen: format!("http://{address}"),
        };
        let entry = ledger::begin(flags.launch_ledger.as_ref(), launched);
        let mut server_info = arguments;
        server_info.insert("hardware".into(), json!(hardware));
        let backend = Arc::clone(&engine);
        let state = ApiState::new(options(
            flags,
            launch,
            server_info,
            (backend, last_window),
            weights.fingerprint,
        )?);
        Ok(Self { listener, state, engine, entry })
    }

    /// Serves until `shutdown` is ready, then drains; the ledger keeps the reason that it gives.
    fn serve(mut self, shutdown: impl Future<Output = &'static str> + Send) -> Result<()> {
        let (entry, engine) = (self.entry.take(), Arc::clone(&self.engine));
        let served = self.run(shutdown);
        if let Some(entry) = entry {
            let reason = match &served {
                Ok(reason) => (*reason).to_owned(),
                Err(error) => format!("error: {error:#}"),
            };
            entry.end(reason, &engine.stats().totals);
        }
        served?;
        tracing::info!("every request has ended; bye");
        Ok(())
    }

    fn run(self, shutdown: impl Future<Output = &'static str> + Send) -> Result<&'static str> {
        // The engine's threads need the cores; the web threads mostly wait.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("web")
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(self.listener)?;
            let address = listener.local_addr()?;
            let mut shutdown = std::pin::pin!(shutdown);
            // Polled before anybody hears of the address: from then on signals end it well.
            let mut reason = poll_fn(|cx| match shutdown.as_mut().poll(cx) {
                Poll::Ready(reason) => Poll::Ready(Some(reason)),
                Poll::Pending => Poll::Ready(None),
            })
            .await;
            tracing::info!("{}", log_line::READY);
            tracing::info!("listening on http://{address}");
            api::run(listener, self.state, async {
                if reason.is_none() {
                    reason = Some(shutdown.await);
                }
            })
            .await;
            Ok(reason.unwrap_or("stopped"))
        })
    }
}

/// Ctrl-C or SIGTERM, whichever comes first.
async fn signal() -> &'static str {
    use tokio::signal::unix::{SignalKind, signal};
    let term = async {
        match signal(SignalKind::terminate()) {
            Ok(mut signal) => signal.recv().await,
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => "Ctrl-C",
        _ = term => "SIGTERM",
    }
}

/// The thread that writes batch lines and the step trace.
fn recorder(flags: &ServeFlags, launch: &Launch) -> Result<(Recorder, LastWindow)> {
    let trace = match &flags.trace {
        None => None,
        Some(path) => {
            let file = File::create(path)
                .with_context(|| format!("cannot write --trace {}", path.display()))?;
            Some(Box::new(BufWriter::new(file)) as Box<dyn Write + Send>)
        }
    };
    let options = ReporterOptions {
        pools: Pools { block_len: BLOCK_LEN, speculates: launch.plan.draft_depth > 0 },
        decode_log_interval: flags.decode_log_interval,
        print: Box::new(logging::print),
        trace,
        now_unix_s: logging::now_unix_s(),
    };
    Ok(reporter::start(options)?)
}

/// The start-up lines that tools look for, in SGLang's grammar.
fn log_sizes(launch: &Launch, load_s: f64) {
    let plan = &launch.plan;
    let available_mem_gib = Host::detect().map_or(f64::NAN, |host| host.memory_bytes as f64 / GIB);
    let config = launch.source.checkpoint().config();
    let conv_floats = config
        .delta
        .as_ref()
        .map_or(0, |d| config.n_layers(LayerKind::Linear) * (d.conv_kernel - 1) * d.n_channels());
    let conv_gib = (plan.n_slots.value * conv_floats * size_of::<f32>()) as f64 / GIB;
    let memory = Memory {
        architecture: plan.architecture.clone(),
        load_s,
        weights_gib: plan.weight_bytes() as f64 / GIB,
        available_mem_gib,
        n_slots: if plan.slot_bytes > 0 { plan.n_slots.value } else { 0 },
        conv_gib,
        delta_gib: plan.state_bytes() as f64 / GIB - conv_gib,
        kv_dtype: match plan.kv_type {
            plan::KvType::Bf16 => "torch.bfloat16",
            plan::KvType::F32 => "torch.float32",
            plan::KvType::Int8 => "torch.int8",
        },
        n_tokens: plan.max_total_tokens(),
        keys_gib: plan.kv_bytes() as f64 / 2.0 / GIB,
    };
    log_line::memory(&memory).iter().for_each(|line| tracing::info!("{line}"));
    let fingerprint = Fingerprint {
        max_total_num_tokens: plan.max_total_tokens(),
        chunked_prefill_size: plan.chunked_prefill_size.value,
        max_prefill_tokens: plan.chunked_prefill_size.value,
        max_running_requests: plan.max_running_requests.value,
        context_len: plan.context_length.value,
        available_mem_gib,
    };
    tracing::info!("{}", log_line::fingerprint(&fingerprint));
}

fn options(
    flags: &ServeFlags,
    launch: Launch,
    mut server_info: Map<String, Value>,
    (engine, last_window): (Arc<EngineHandle>, LastWindow),
    fingerprint: String,
) -> Result<ApiOptions> {
    let plan = &launch.plan;
    let checkpoint = launch.source.checkpoint();
    let (config, generation) = (checkpoint.config(), checkpoint.generation());
    let sampling = launch::default_sampling(generation);
    server_info.insert("engine".into(), json!(dialects::Engine::Outrider.name()));
    server_info.insert("version".into(), json!(env!("CARGO_PKG_VERSION")));
    let types = checkpoint.stored_types().into_iter();
    let types: Map<String, Value> =
        types.map(|(dtype, _, bytes)| (dtype.to_string(), json!(bytes))).collect();
    server_info.insert("weight_types_bytes".into(), types.into());
    let output_matrix =
        if plan.weights.head > 0 { plan.weights.head } else { plan.weights.embedding };
    let step_bytes = json!({
        "forward": plan.weights.layers + output_matrix,
        "draft": plan.weights.draft_head + output_matrix,
    });
    server_info.insert("step_bytes".into(), step_bytes);
    server_info.insert("plan".into(), json!(plan.to_string().lines().collect::<Vec<_>>()));
    Ok(ApiOptions {
        backend: engine,
        model: ModelInfo {
            served_name: flags
                .served_model_name
                .clone()
                .unwrap_or_else(|| launch.source.name.clone()),
            model_path: launch.source.name.clone(),
            architecture: config.architecture.clone(),
            model_type: config.model_type.clone(),
            weight_version: flags.weight_version.clone().unwrap_or(fingerprint),
            note: launch.source.is_embedded().then(|| embedded::NOTE.to_owned()),
            eos_token_ids: generation.eos_token_ids.clone(),
            vocab_size: config.vocab_size,
        },
        defaults: SamplingDefaults {
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            top_k: sampling.top_k,
            min_p: sampling.min_p,
            repetition_penalty: sampling.repetition_penalty,
        },
        sizes: Sizes {
            context_len: plan.context_length.value,
            max_total_num_tokens: plan.max_total_tokens(),
            block_len: BLOCK_LEN,
            max_running_requests: plan.max_running_requests.value,
            max_queued_requests: plan.max_queued_requests,
            speculates: plan.draft_depth > 0,
        },
        parsers: Parsers { reasoning: true, tools: true },
        keys: Keys::new(flags.api_key.as_deref(), []),
        timeouts: Timeouts {
            drain: Duration::from_secs(flags.drain_timeout),
            ..Timeouts::default()
        },
        max_connections: MAX_CONNECTIONS,
        last_window,
        server_info,
        tokenizer: launch.tokenizer,
        chat_template: launch.template,
    })
}

/// A server inside this process, for as long as its owner wants.
pub(crate) struct LocalServer {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<Result<()>>,
}

/// Serves a model on a free loopback port from a thread of this process, logging only warnings.
pub(crate) fn start_local(model: &str, quantization: Option<Quantization>) -> Result<LocalServer> {
    let arguments = [
        &["outrider", "serve", model, "--port", "0"][..],
        &["--log-level", "warn", "--launch-ledger", "none"],
    ]
    .concat();
    let Command::Serve(mut flags) = Cli::parse_from(arguments).command else {
        bail!("not a serve command");
    };
    flags.model.quantization = quantization;
    logging::start(&flags.log_level)?;
    let server = Server::start(&flags, listen(&flags.host, flags.port)?)?;
    let address = server.listener.local_addr()?;
    let (stop, stopped) = oneshot::channel();
    let thread = std::thread::spawn(move || {
        server.serve(async {
            // An error means that the owner is gone, which is as good a reason to stop.
            let _ = stopped.await;
            "its owner"
        })
    });
    Ok(LocalServer { address, stop, thread })
}

impl LocalServer {
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn stop(self) -> Result<()> {
        // An error means that the server has already ended; its own result says why.
        let _ = self.stop.send(());
        self.thread.join().map_err(|_| anyhow!("the server's thread panicked"))?
    }
}
