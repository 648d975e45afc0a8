//! Server-sent events: framing, comments against idle time-outs, and the end.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_util::stream;
use serde::Serialize;

use crate::error::ApiError;
use crate::generation::{Generation, Piece};

/// Stop filling one write at this size; a client that lags behind gets large writes.
const WRITE_LEN: usize = 16 << 10;

/// Turns pieces of answers into events of one route's shape.
pub(crate) trait Render: Send + 'static {
    /// Writes the events of one piece.
    fn piece(&mut self, piece: Piece, frames: &mut Frames);

    /// Writes the events that follow when all answers have ended.
    fn done(&mut self, frames: &mut Frames);
}

/// Bytes of events.
#[derive(Default)]
pub(crate) struct Frames(Vec<u8>);

impl Frames {
    /// One event with a JSON object.
    pub(crate) fn json(&mut self, event: &impl Serialize) {
        self.0.extend_from_slice(b"data: ");
        let start = self.0.len();
        if let Err(error) = serde_json::to_writer(&mut self.0, event) {
            // Only a map with keys that are no strings could get here; there is none.
            self.0.truncate(start);
            self.0.extend_from_slice(b"{}");
            tracing::error!("an event could not be written: {error}");
        }
        self.0.extend_from_slice(b"\n\n");
    }

    fn end(&mut self) {
        self.0.extend_from_slice(b"data: [DONE]\n\n");
    }
}

struct Events<R> {
    generation: Generation,
    render: R,
    ended: bool,
}

/// A response that sends the pieces of `generation` as they come.
pub(crate) fn respond<R: Render>(generation: Generation, render: R) -> Response {
    let events = Events { generation, render, ended: false };
    let body = stream::unfold(events, |mut events| async move {
        let frames = events.next().await?;
        Some((Ok::<_, Infallible>(Bytes::from(frames.0)), events))
    });
    let mut response = Response::new(Body::from_stream(body));
    let headers = response.headers_mut();
    headers
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies would collect events and send them late.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

impl<R: Render> Events<R> {
    /// The bytes of the next write: all events that are there, or a comment after a while without.
    async fn next(&mut self) -> Option<Frames> {
        if self.ended {
            return None;
        }
        let mut frames = Frames::default();
        let keep_alive = self.generation.state().options.timeouts.keep_alive;
        let Ok(mut next) = tokio::time::timeout(keep_alive, self.generation.next()).await else {
            return Some(Frames(b": keep-alive\n\n".to_vec()));
        };
        loop {
            match next {
                Some(Ok(piece)) => self.render.piece(piece, &mut frames),
                Some(Err(error)) => {
                    self.fail(error, &mut frames);
                    break;
                }
                None => {
                    self.render.done(&mut frames);
                    frames.end();
                    self.ended = true;
                    break;
                }
            }
            if frames.0.len() >= WRITE_LEN {
                break;
            }
            next = self.generation.try_next();
            if next.is_none() && self.generation.is_open() {
                break;
            }
        }
        Some(frames)
    }

    fn fail(&mut self, error: ApiError, frames: &mut Frames) {
        tracing::error!("a stream failed: {error:?}");
        frames.json(&error.body());
        frames.end();
        self.ended = true;
    }
}
