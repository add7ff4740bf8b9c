//! What was found out, and what follows from all of it.

use serde::Serialize;

/// How it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    /// As it should be, or nothing that Shorthaul uses.
    Ok,
    /// It works, slower or not for everything.
    Degraded,
    /// A lane does not work.
    Missing,
    /// It could not be found out.
    Unknown,
}

impl Verdict {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Degraded => "degraded",
            Self::Missing => "missing",
            Self::Unknown => "unknown",
        }
    }
}

/// What belongs together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Group {
    Machine,
    MemoryFiles,
    HugePages,
    Limits,
    MovingBytes,
    Surroundings,
}

impl Group {
    pub(super) const ALL: [Self; 6] = [
        Self::Machine,
        Self::MemoryFiles,
        Self::HugePages,
        Self::Limits,
        Self::MovingBytes,
        Self::Surroundings,
    ];

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Machine => "Machine",
            Self::MemoryFiles => "Memory files (what two processes share memory by)",
            Self::HugePages => "Huge pages (memory in large pieces: fewer page faults)",
            Self::Limits => "Limits of this process",
            Self::MovingBytes => "Moving bytes without copying them",
            Self::Surroundings => "Surroundings (containers, filters)",
        }
    }
}

/// What a finding is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct About {
    pub(super) id: &'static str,
    pub(super) group: Group,
    /// In words for somebody who does not know the id.
    pub(super) what: &'static str,
    /// What Shorthaul has of it.
    pub(super) use_of_it: &'static str,
}

impl About {
    pub(super) fn ok(self, found: impl Into<String>) -> Finding {
        self.finding(Verdict::Ok, found, self.use_of_it)
    }

    /// `cost` is what is lost, `remedy` what can be done.
    pub(super) fn degraded(
        self,
        found: impl Into<String>,
        cost: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        let remedy = Some(remedy.into());
        Finding { remedy, ..self.finding(Verdict::Degraded, found, cost) }
    }

    /// `lost` names what of Shorthaul does not work.
    pub(super) fn missing(
        self,
        found: impl Into<String>,
        lost: &'static [&'static str],
        cost: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        let remedy = Some(remedy.into());
        Finding { remedy, lost, ..self.finding(Verdict::Missing, found, cost) }
    }

    pub(super) fn unknown(self, why: impl Into<String>) -> Finding {
        self.finding(Verdict::Unknown, why, self.use_of_it)
    }

    fn finding(self, verdict: Verdict, found: impl Into<String>, m: impl Into<String>) -> Finding {
        let Self { id, group, what, .. } = self;
        let (found, meaning) = (found.into(), m.into());
        Finding { id, group, what, verdict, found, meaning, remedy: None, lost: &[] }
    }
}

/// One thing that was tried or read.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Finding {
    pub(super) id: &'static str,
    pub(super) group: Group,
    pub(super) what: &'static str,
    pub(super) verdict: Verdict,
    /// A value and where it is from, or what came of trying.
    pub(super) found: String,
    /// What it is for; where it is not ok, what it costs.
    pub(super) meaning: String,
    pub(super) remedy: Option<String>,
    #[serde(skip)]
    pub(super) lost: &'static [&'static str],
}

/// All of them.
#[derive(Debug)]
pub(super) struct Findings(pub(super) Vec<Finding>);

impl Findings {
    pub(super) fn has_missing(&self) -> bool {
        self.count(Verdict::Missing) > 0
    }

    /// All of it in one line.
    pub(super) fn conclusion(&self) -> String {
        let notes = [(Verdict::Degraded, "degraded"), (Verdict::Unknown, "unknown")];
        let notes = notes.map(|(verdict, name)| (self.count(verdict), name));
        let notes = notes.iter().filter(|(count, _)| *count > 0);
        let notes: Vec<String> = notes.map(|(count, name)| format!("{count} {name}")).collect();
        let notes =
            if notes.is_empty() { String::new() } else { format!("; {}", notes.join(", ")) };
        match self.lost() {
            lost if lost.is_empty() => format!("Every lane works{notes}."),
            lost => format!("{}{notes}.", lost.replacen("no", "No", 1)),
        }
    }

    fn count(&self, verdict: Verdict) -> usize {
        self.0.iter().filter(|finding| finding.verdict == verdict).count()
    }

    /// "no fill lane, no sealed answers (memfd)": each lane once, with the first that takes it.
    fn lost(&self) -> String {
        let mut known = Vec::new();
        let mut groups = Vec::new();
        for finding in &self.0 {
            let new = finding.lost.iter().filter(|lane| !known.contains(*lane));
            let new: Vec<&str> = new.copied().collect();
            if !new.is_empty() {
                groups.push(format!("no {} ({})", new.join(", no "), finding.id));
            }
            known.extend(new);
        }
        groups.join(", ")
    }
}

/// Lanes, as the conclusion names them.
pub(super) const FILL: &str = "fill lane";
pub(super) const SEALED_ANSWERS: &str = "sealed answers";
pub(super) const SEALED_UPLOADS: &str = "sealed uploads";
pub(super) const CONNECTIONS: &str = "connections by the default policy";
pub(super) const GIVEN_FILES: &str = "answers into files that clients hand over";
