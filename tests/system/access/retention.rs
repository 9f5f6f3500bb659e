//! Revocations and quotas do not end with the records that retention of the log removes.

use serde_json::json;

use super::{API_KEY, Guarded, bearer};
use crate::own_state::{RETENTION, SMALL, fill_past};
use crate::rig::{Connection, Encke, JSON};

/// A quota of streams for all but the backend, which fills the log.
const QUOTAS: &str =
    "\n[access.quotas]\nstreams = 2\n[[access.quotas.overrides]]\nname = 'backend'\nstreams = 0\n";

fn fill(guarded: &Guarded) {
    let backend = bearer(API_KEY);
    fill_past(
        &|method, target, body| guarded.encke.ask(method, target, &[JSON, &backend], body),
        &|| guarded.metric("encke_log_kept_behind{log=\"0\"}") as f64,
    );
}

/// The server again, with the same data and a retention.
fn restarted(guarded: Guarded, end: impl FnOnce(Encke)) -> Guarded {
    let Guarded {
        encke,
        config,
        _config_dir,
        _data,
        ..
    } = guarded;
    end(encke);
    let data = _data.expect("the data is kept");
    let flags = [&SMALL[..], &RETENTION].concat();
    let mut again = Guarded::again(&config, _config_dir, data.path(), &flags);
    again._data = Some(data);
    again
}

fn outlast_retention(flags: &[&str]) {
    let flags = [&SMALL[..], flags].concat();
    let mut guarded = Guarded::start_with_flags(QUOTAS, &flags);
    let allow = ["--allow", "read,create=/v1/**"];
    let token = |arguments: &[&str]| bearer(&guarded.token(&[arguments, &allow].concat()));
    let by_jti = token(&["--sub", "eve", "--jti", "one", "--expires", "1h"]);
    let by_sub = token(&["--sub", "ann", "--expires", "1h"]);
    let limited = token(&["--sub", "bob", "--expires", "1h"]);
    let put = |guarded: &Guarded, name: &str, token: &str| {
        guarded
            .ask("PUT", &format!("/v1/stream/{name}"), token, b"")
            .0
    };
    for name in ["one", "two"] {
        assert_eq!(put(&guarded, name, &limited), 201);
    }
    for body in [json!({ "jti": "one" }), json!({ "sub": "ann" })] {
        let mut connection = Connection::open(guarded.operators);
        let body = body.to_string();
        let revoked = connection.ask("POST", "/v1/admin/revoke", &[JSON], body.as_bytes());
        assert_eq!(revoked.status, 204, "{revoked:?}");
    }
    for round in 0..4 {
        guarded = restarted(guarded, |encke| match round % 2 {
            0 => encke.kill(),
            _ => assert_eq!(encke.terminate().code, Some(0)),
        });
        for _ in 0..2 {
            for revoked in [&by_jti, &by_sub] {
                let answer = guarded.ask("GET", "/v1/stream/one", revoked, b"");
                assert_eq!(answer.0, 401, "round {round}: {answer:?}");
            }
            assert_eq!(put(&guarded, "three", &limited), 429, "round {round}");
            fill(&guarded);
        }
    }
}

#[test]
fn revocations_and_quotas_outlast_a_retention_that_is_set_later() {
    outlast_retention(&[]);
}

#[test]
fn revocations_and_quotas_outlast_a_retention_that_was_there_before() {
    outlast_retention(&RETENTION);
}
