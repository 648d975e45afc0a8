//! Connections: how many, how long they may idle, and how a shutdown ends them.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use engine::handle::Shutdown;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

use crate::routes;
use crate::stall::Stall;
use crate::state::ApiState;

/// After a failed `accept` (no file descriptors left), the next try.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);
/// What answers get to be written out when the drain time is over.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Serves until `shutdown` is ready. Then no connection is accepted, running requests have the drain
/// time to end, and what is left ends as aborted.
pub async fn run(
    listener: TcpListener,
    state: Arc<ApiState>,
    shutdown: impl Future<Output = ()> + Send,
) {
    let router = routes::router(Arc::clone(&state));
    let places = Arc::new(Semaphore::new(state.options.max_connections));
    let (closing, closed) = watch::channel(false);
    let mut connections = JoinSet::new();
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        tokio::select! {
            biased;
            () = &mut shutdown => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            (stream, place) = accept(&listener, &places) => {
                let connection = Connection {
                    router: router.clone(),
                    state: Arc::clone(&state),
                    closing: closed.clone(),
                    _place: place,
                };
                connections.spawn(connection.serve(stream));
            }
        }
    }
    drop(listener);
    state.drain();
    state.options.backend.shutdown(Shutdown::Drain);
    // Idle connections close now, others after their answer. Nobody may be listening any more.
    let _ = closing.send(true);
    if !all_end(&mut connections, state.options.timeouts.drain).await {
        tracing::warn!("drain time is over: ending {} requests", state.n_live());
        state.options.backend.shutdown(Shutdown::Now);
        all_end(&mut connections, LAST_WORDS).await;
    }
    connections.shutdown().await;
    state.options.backend.shutdown(Shutdown::Now);
    let backend = Arc::clone(&state.options.backend);
    if let Err(error) = tokio::task::spawn_blocking(move || backend.wait()).await {
        tracing::error!("waiting for the engine failed: {error}");
    }
}

/// The next connection, when there is a place for it.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> (TcpStream, Option<OwnedSemaphorePermit>) {
    // The semaphore is never closed, so there is always a place in the end.
    let place = Arc::clone(places).acquire_owned().await.ok();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return (stream, place),
            Err(error) => {
                tracing::warn!("a connection could not be accepted: {error}");
                tokio::time::sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}

/// Whether all connections end within `limit`.
async fn all_end(connections: &mut JoinSet<()>, limit: Duration) -> bool {
    let all = async { while connections.join_next().await.is_some() {} };
    tokio::time::timeout(limit, all).await.is_ok()
}

/// Ready when the server closes.
async fn closed(closing: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone, and the server with it.
    let _ = closing.wait_for(|closing| *closing).await;
}

struct Connection {
    router: Router,
    state: Arc<ApiState>,
    closing: watch::Receiver<bool>,
    /// Free again when the connection is dropped.
    _place: Option<OwnedSemaphorePermit>,
}

impl Connection {
    async fn serve(mut self, stream: TcpStream) {
        // A token is a small packet and must not wait for the next one.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!("no TCP_NODELAY: {error}");
        }
        let timeouts = &self.state.options.timeouts;
        let io = TokioIo::new(Stall::new(stream, timeouts.stall));
        let service = TowerToHyperService::new(self.router);
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(timeouts.head)
            .serve_connection(io, service);
        let mut connection = std::pin::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = closed(&mut self.closing) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            // Clients that leave early are not worth a line in the log.
            tracing::debug!("a connection ended with: {error}");
        }
    }
}
