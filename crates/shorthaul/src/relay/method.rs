//! The ways to move bytes, by name.

use std::fmt;
use std::str::FromStr;

/// A way to move bytes from a source to a sink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Method {
    /// By what source and sink are, falling back where the kernel refuses.
    #[default]
    Auto,
    /// read(2) and write(2) through a page-aligned buffer that is used again. Works between any
    /// two.
    ReadWrite,
    /// Map the source and write(2) from the mapping: one copy less. Sources that can be mapped.
    Map,
    /// splice(2), through a pipe unless source or sink is one: no copy where the sink takes pages.
    Splice,
    /// sendfile(2): the same with a pipe of the kernel's own. Files and block devices.
    SendFile,
    /// copy_file_range(2): file to file, which some file systems do without moving a byte.
    CopyFileRange,
}

impl Method {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Auto, Self::ReadWrite, Self::Map, Self::Splice, Self::SendFile, Self::CopyFileRange];

    /// Its short name, such as `rw`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::ReadWrite => "rw",
            Self::Map => "mmap",
            Self::Splice => "splice",
            Self::SendFile => "sendfile",
            Self::CopyFileRange => "copy_file_range",
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Method {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|method| method.name() == name);
        known.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("there is no method {name:?}; there are {names}")
        })
    }
}

#[cfg(test)]
#[cfg(not(shorthaul_models))]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for method in Method::ALL {
            assert_eq!(method.to_string().parse(), Ok(method));
        }
        assert!("tee".parse::<Method>().unwrap_err().contains("rw, mmap, splice"));
    }
}
