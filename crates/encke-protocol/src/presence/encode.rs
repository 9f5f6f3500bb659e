//! What happens to the members of a stream, as server-sent events.

use encke_clock::WallTime;

use super::wire::{MembersList, MembersRecord, RecordKind};
use crate::encoded_run::EncodedRun;
use crate::encoder::{Encoder, Farewell, RecordHead, Variant};
use crate::long_record::{DataForm, RecordForm};
use crate::run::Run;
use crate::sse;

/// Events with the members: `members`, `join`, `update`, `leave`.
#[derive(Debug)]
pub(super) struct MemberEvents;

/// Events with their number: `count`.
#[derive(Debug)]
pub(super) struct CountEvents;

impl Encoder for MemberEvents {
    fn encode(&self, _: Variant<'_>, run: &Run<'_>, _now: WallTime, out: &mut EncodedRun) {
        for item in run.items {
            if let Some(record) = MembersRecord::parse(item.data) {
                event(record.kind.name(), item.data, &mut out.bytes);
            }
            out.mark(item.end);
        }
    }

    fn form(&self, _: Variant<'_>, record: &RecordHead<'_>, _: WallTime) -> RecordForm {
        let name = match MembersList::begins(record.beginning) {
            Some(_) => RecordKind::Members.name(),
            // The data of one member is short.
            None => return RecordForm::each_message(0),
        };
        RecordForm {
            head: format!("event: {name}\ndata:").into_bytes(),
            data: DataForm::EventMessages,
            tail: b"\n\n".to_vec(),
        }
    }

    fn farewell(&self, _: Variant<'_>, farewell: &Farewell, _: WallTime, out: &mut Vec<u8>) {
        goodbye(farewell, out);
    }

    fn heartbeat(&self) -> &'static [u8] {
        HEARTBEAT
    }
}

impl Encoder for CountEvents {
    fn encode(&self, _: Variant<'_>, run: &Run<'_>, _now: WallTime, out: &mut EncodedRun) {
        for item in run.items {
            let record = MembersRecord::parse(item.data);
            if let Some(record) = record.filter(|record| record.kind != RecordKind::Update) {
                event("count", &counted(record.count), &mut out.bytes);
            }
            out.mark(item.end);
        }
    }

    fn form(&self, _: Variant<'_>, record: &RecordHead<'_>, _: WallTime) -> RecordForm {
        let mut head = Vec::new();
        if let Some(list) = MembersList::begins(record.beginning) {
            event("count", &counted(list.count), &mut head);
        }
        RecordForm {
            head,
            ..RecordForm::each_message(0)
        }
    }

    fn farewell(&self, _: Variant<'_>, farewell: &Farewell, _: WallTime, out: &mut Vec<u8>) {
        goodbye(farewell, out);
    }

    fn heartbeat(&self) -> &'static [u8] {
        HEARTBEAT
    }
}

/// What is said of a record to those who may not know names.
pub(super) fn counted(count: usize) -> Vec<u8> {
    format!("{{\"count\":{count}}}").into_bytes()
}

fn event(name: &str, data: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(name.as_bytes());
    out.push(b'\n');
    sse::lines(data, out);
    out.push(b'\n');
}

/// It connects again, and begins with the members.
fn goodbye(farewell: &Farewell, out: &mut Vec<u8>) {
    sse::retry(farewell.retry_ms, out);
    out.extend_from_slice(b"event: disconnect\ndata: ");
    sse::disconnect(farewell, out);
    out.extend_from_slice(b"\n\n");
}

const HEARTBEAT: &[u8] = b":\n\n";
