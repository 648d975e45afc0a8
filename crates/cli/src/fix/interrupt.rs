//! Ctrl-C and SIGTERM as a question that is asked between steps, so that nothing is left half done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use tokio::signal::unix::{SignalKind, signal};

/// Whether somebody wants an end.
#[derive(Clone)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// From now on signals only set the answer.
    pub(crate) fn watch() -> Result<Interrupt> {
        let asked = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&asked);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (mut int, mut term) = {
            let _inside = runtime.enter();
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
        };
        std::thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = int.recv() => {}
                    _ = term.recv() => {}
                }
                told.store(true, Ordering::SeqCst);
                eprintln!("interrupted: restoring the configuration that was found");
            });
        });
        Ok(Interrupt(asked))
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
