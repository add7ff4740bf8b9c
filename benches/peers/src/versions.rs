//! Which versions were built, from the lock file.

use std::collections::HashMap;

use anyhow::Result;
use serde::Deserialize;

/// Version by package; the newest where there are several.
pub(crate) fn versions() -> Result<HashMap<String, String>> {
    let lock: Lock = toml::from_str(include_str!("../Cargo.lock"))?;
    // The lock file has the versions of a package in ascending order.
    Ok(lock.package.into_iter().map(|package| (package.name, package.version)).collect())
}

#[derive(Deserialize)]
struct Lock {
    package: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_peer_that_is_of_a_package_has_its_version() {
        let versions = versions().unwrap();
        for package in crate::peers::all().iter().filter_map(|peer| peer.package()) {
            assert!(versions.contains_key(package), "{package}");
        }
    }
}
