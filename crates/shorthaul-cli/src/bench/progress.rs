//! How far a run is, on standard error, when that is a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar that is drawn between measurements only: no thread of its own disturbs them.
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    pub(crate) fn new() -> Self {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{wide_bar} {percent}% · {eta} left · {msg:.dim}");
        if let Ok(style) = style {
            bar.set_style(style);
        }
        Self { bar }
    }

    pub(crate) fn begin(&self, steps: usize) {
        self.bar.set_length(steps as u64);
        self.bar.set_message("warming up");
        self.bar.tick();
    }

    pub(crate) fn step(&self, what: &str) {
        self.bar.set_message(what.to_owned());
        self.bar.inc(1);
    }

    pub(crate) fn end(&self) {
        self.bar.finish_and_clear();
    }
}
