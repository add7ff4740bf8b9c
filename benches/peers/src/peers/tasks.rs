//! Several calls under way on one thread that runs tasks.

use anyhow::Result;
use futures::future::try_join_all;
use tokio::runtime::{Builder, Runtime};

use crate::work::{Load, Request};

/// All of a side's tasks run on the thread that it is pinned with.
pub(super) fn runtime() -> Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

/// Makes all calls of the load, as many at a time as it says.
pub(super) async fn run<F: Future<Output = Result<()>>>(
    load: &Load,
    call: impl Fn(Request) -> F,
) -> Result<()> {
    let line = || async {
        while let Some(request) = load.next() {
            call(request).await?;
        }
        anyhow::Ok(())
    };
    if load.in_flight() == 1 {
        return line().await;
    }
    try_join_all((0..load.in_flight()).map(|_| line())).await?;
    Ok(())
}
