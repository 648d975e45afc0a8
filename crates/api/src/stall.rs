//! Gives up a connection whose client takes no bytes: it would hold its place for ever.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// A stream whose writes fail when none of their bytes are taken within `limit`.
pub(crate) struct Stall<S> {
    io: S,
    limit: Duration,
    timer: Pin<Box<Sleep>>,
    waiting: bool,
}

impl<S> Stall<S> {
    /// Watches the writes of `io`.
    pub(crate) fn new(io: S, limit: Duration) -> Stall<S> {
        Stall { io, limit, timer: Box::pin(tokio::time::sleep(limit)), waiting: false }
    }

    fn watch<T>(
        &mut self,
        cx: &mut Context<'_>,
        write: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if write.is_ready() {
            self.waiting = false;
            return write;
        }
        if !std::mem::replace(&mut self.waiting, true) {
            self.timer.as_mut().reset(Instant::now() + self.limit);
        }
        self.timer.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stall<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stall<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let write = Pin::new(&mut self.io).poll_write(cx, buf);
        self.watch(cx, write)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flush = Pin::new(&mut self.io).poll_flush(cx);
        self.watch(cx, flush)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shutdown = Pin::new(&mut self.io).poll_shutdown(cx);
        self.watch(cx, shutdown)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let write = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.watch(cx, write)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_stops_is_given_up() {
        let (near, _far) = tokio::io::duplex(10);
        let mut stall = Stall::new(near, Duration::from_secs(60));
        let start = Instant::now();
        let error = stall.write_all(&[0; 100]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(start.elapsed().as_secs(), 60);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_is_served() {
        let (near, mut far) = tokio::io::duplex(10);
        let mut stall = Stall::new(near, Duration::from_secs(60));
        let reader = tokio::spawn(async move {
            let mut buf = [0; 10];
            for _ in 0..10 {
                tokio::time::sleep(Duration::from_secs(50)).await;
                far.read_exact(&mut buf).await.unwrap();
            }
        });
        stall.write_all(&[0; 100]).await.unwrap();
        reader.await.unwrap();
    }
}
