//! Two servers, and imports from one to the other.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use encke_import::{
    BearerToken, Import, ImportReport, ImportSettings, ServerAccess, SourceRoot, tasks,
};
use tempfile::TempDir;

use crate::faulty_server::{FaultyServer, Manners};

/// Two servers, and the directory of a state.
pub(crate) struct Rig {
    pub(crate) source: FaultyServer,
    pub(crate) destination: FaultyServer,
    pub(crate) state: TempDir,
}

/// A server without faults, whose pages have up to five records.
pub(crate) const FLAWLESS: Manners = Manners {
    seed: 1,
    faults_of_100: 0,
    page_records: 5,
};

/// How long a test waits for what must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

impl Rig {
    pub(crate) fn start(source: Manners, destination: Manners) -> Rig {
        Rig {
            source: FaultyServer::start(source),
            destination: FaultyServer::start(destination),
            state: TempDir::new().unwrap(),
        }
    }

    pub(crate) fn flawless() -> Rig {
        Rig::start(FLAWLESS, FLAWLESS)
    }

    pub(crate) fn settings(&self, names: &[&str]) -> ImportSettings {
        let source = SourceRoot::parse(&self.source.url()).unwrap();
        let destination = SourceRoot::parse_destination(&self.destination.url()).unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        ImportSettings {
            tasks: tasks(&source, Some(&names), "", &destination).unwrap(),
            source: ServerAccess::default(),
            destination: ServerAccess::default(),
            client: Default::default(),
            state: self.state.path().to_owned(),
            jobs: 3,
            follow: false,
            verify: false,
            patience: PATIENCE,
        }
    }

    /// Copies streams, and returns what the import says of it.
    pub(crate) fn import(&self, names: &[&str]) -> ImportReport {
        run(self.settings(names))
    }

    /// Copies one stream that can't be copied, and returns why.
    pub(crate) fn failure(&self, name: &str) -> String {
        let report = self.import(&[name]);
        assert!(!report.complete);
        report.of_streams[0].failure().unwrap()
    }

    /// Both have the same of a stream, and each line of the map is of positions that mean the same.
    pub(crate) fn check(&self, name: &str) {
        let (from, to) = (
            self.source.held(name).unwrap(),
            self.destination.held(name).unwrap(),
        );
        assert!(
            from.contents() == to.contents(),
            "{name}: the contents differ"
        );
        assert_eq!(
            (&from.content_type, &from.ttl, from.closed),
            (&to.content_type, &to.ttl, to.closed)
        );
        for pair in map(self.state.path(), name) {
            let (source, offset) = (pair.0.as_str(), pair.1.as_str());
            assert!(
                from.before(source) == to.before(offset),
                "{name}: {source} is not {offset}"
            );
        }
    }
}

pub(crate) fn run(settings: ImportSettings) -> ImportReport {
    Import::new(settings).unwrap().run(&AtomicBool::new(false))
}

pub(crate) fn token(text: &str) -> ServerAccess {
    ServerAccess {
        token: Some(BearerToken::Value(text.into())),
        fields: Vec::new(),
    }
}

/// The file of a stream's journal; names of tests need no escapes.
pub(crate) fn journal(state: &Path, name: &str) -> std::path::PathBuf {
    state.join(format!("{name}.jsonl"))
}

/// The pairs of offsets in the map of a stream.
pub(crate) fn map(state: &Path, name: &str) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(journal(state, name)).unwrap();
    let lines = text.lines().skip(1);
    let lines = lines.map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let pair = |line: serde_json::Value| {
        let text = |name: &str| line[name].as_str().unwrap().to_owned();
        line.get("behind")
            .is_none()
            .then(|| (text("source"), text("offset")))
    };
    lines.filter_map(pair).collect()
}

pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "still not so: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
