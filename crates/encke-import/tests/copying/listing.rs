//! The list of a source that has one.

use std::time::Duration;

use encke_import::{ListError, ServerAccess, SourceRoot, list};

use crate::faulty_server::Manners;
use crate::rig::{FLAWLESS, Rig, token};

fn listed(rig: &Rig, prefix: &str, access: &ServerAccess) -> Result<Vec<String>, ListError> {
    let source = SourceRoot::parse(&rig.source.url()).unwrap();
    list(
        &source,
        prefix,
        access,
        &Default::default(),
        Duration::from_secs(60),
    )
}

#[test]
fn all_pages_are_read_whatever_fails() {
    let manners = Manners {
        seed: 3,
        faults_of_100: 30,
        page_records: 4,
    };
    let rig = Rig::start(manners, FLAWLESS);
    rig.source.list_streams();
    let names: Vec<String> = (10..40).map(|number| format!("chat/{number}")).collect();
    names
        .iter()
        .for_each(|name| rig.source.create(name, "text/plain"));
    rig.source.create("other", "text/plain");
    let none = ServerAccess::default();
    assert_eq!(listed(&rig, "chat/", &none).unwrap(), names);
    assert_eq!(listed(&rig, "", &none).unwrap().len(), 31);
    assert!(listed(&rig, "none/", &none).unwrap().is_empty());
}

#[test]
fn a_source_without_a_list_is_told_from_one_that_refuses() {
    let rig = Rig::flawless();
    let error = listed(&rig, "", &ServerAccess::default()).unwrap_err();
    assert!(matches!(error, ListError::NoList(_)), "{error}");
    assert!(error.to_string().contains("name them"), "{error}");
    rig.source.ask_for_token("t");
    let error = listed(&rig, "", &ServerAccess::default())
        .unwrap_err()
        .to_string();
    assert!(error.contains("got 401"), "{error}");
    rig.source.list_streams();
    assert!(listed(&rig, "", &token("t")).unwrap().is_empty());
}
