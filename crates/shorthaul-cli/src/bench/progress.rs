//! How far a run is, on standard error, when that is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar that is drawn between measurements only: no thread of its own disturbs them.
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    pub(crate) fn new() -> Self {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{bar:32} {percent:>3}% · {msg}");
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

    pub(crate) fn step(&self, what: &str, left: Duration) {
        self.bar.set_message(format!("{:.0} s left · {what}", left.as_secs_f64().ceil()));
        self.bar.inc(1);
    }

    pub(crate) fn end(&self) {
        self.bar.finish_and_clear();
    }
}
