//! What a request that lasts needs of its caller: when the configuration of access changes, it goes on if the caller still has it.
//!
//! There is one for each subscription, so it is one text.

use encke_access::{Access, CallerTag, Grantee, Operation, RegrantedCaller, Standing};

use serde::{Deserialize, Serialize};

use crate::requirement::{Paths, Requirement};

/// The requirements of a request that lasts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CallerNeeds(Box<str>);

/// What becomes of a request that lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallerJudgement {
    /// It goes on.
    Unchanged,
    /// It goes on, and its caller is granted something else than before.
    Regranted,
    /// It ends: its caller may not do it any more.
    Refused,
    /// It ends: only the caller's credential can say whether it may go on. The client may present that again.
    Unknown,
}

impl CallerNeeds {
    /// The needs of a request.
    pub(crate) fn of(requirements: &[Requirement<'_>]) -> Self {
        let mut text = String::new();
        for (at, one) in requirements.iter().enumerate() {
            if at > 0 {
                text.push(BETWEEN);
            }
            let (kind, path) = match &one.paths {
                Paths::One(path) => (ONE, path),
                Paths::Below(prefix) => (BELOW, prefix),
            };
            text.push(letter(Some(one.operation)));
            text.push(letter(one.or));
            text.push(kind);
            text.push_str(path);
        }
        CallerNeeds(text.into())
    }

    /// Judges a request by the access control in force. `needs`: what the request needs, if it is more than a caller.
    pub fn judge(needs: Option<&Self>, tag: &CallerTag, access: &Access) -> CallerJudgement {
        match access.standing(tag) {
            Standing::Unchanged => CallerJudgement::Unchanged,
            Standing::Refused => CallerJudgement::Refused,
            Standing::Unknown => CallerJudgement::Unknown,
            Standing::Regranted(caller) => {
                let mut needs = needs.into_iter().flat_map(CallerNeeds::requirements);
                let ends = needs.find_map(|needed| refusal(&needed, &caller));
                ends.unwrap_or(CallerJudgement::Regranted)
            }
        }
    }

    fn requirements(&self) -> impl Iterator<Item = Requirement<'_>> {
        let parts = self.0.split(BETWEEN).filter(|part| !part.is_empty());
        parts.filter_map(|part| {
            let mut letters = part.chars();
            let operation = self::operation(letters.next()?)?;
            let or = self::operation(letters.next()?);
            let kind = letters.next()?;
            let path = letters.as_str().into();
            Some(Requirement {
                operation,
                or,
                paths: match kind {
                    BELOW => Paths::Below(path),
                    _ => Paths::One(path),
                },
            })
        })
    }
}

/// How a request ends for want of one right; `None` if its caller has it.
fn refusal(needed: &Requirement<'_>, caller: &RegrantedCaller) -> Option<CallerJudgement> {
    if !needed.is_met_by(caller) {
        return Some(match caller.is_certain() {
            true => CallerJudgement::Refused,
            false => CallerJudgement::Unknown,
        });
    }
    // Whose stream it has subscribed to is not kept. With this right it could be anyone's.
    let (could, can) = match &needed.paths {
        Paths::One(path) => (
            caller.might(Operation::Own, path),
            caller.may(Operation::Own, path),
        ),
        Paths::Below(prefix) => (
            caller.might_below(Operation::Own, prefix),
            caller.may_below(Operation::Own, prefix),
        ),
    };
    (could && !can).then_some(CallerJudgement::Unknown)
}

fn letter(operation: Option<Operation>) -> char {
    operation.map_or(NONE, |operation| char::from(FIRST + operation as u8))
}

fn operation(letter: char) -> Option<Operation> {
    let number = u8::try_from(letter).ok()?.checked_sub(FIRST)?;
    Operation::ALL.get(usize::from(number)).copied()
}

/// No canonical path has a control character.
const BETWEEN: char = '\0';

/// The letter of the first operation.
const FIRST: u8 = b'a';

/// No operation.
const NONE: char = '-';

/// One path.
const ONE: char = '=';

/// All paths below a prefix.
const BELOW: char = '<';

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needs_are_kept_as_they_are() {
        let mut needed = vec![
            Requirement::at(Operation::Read, "/v1/stream/a=b<c"),
            Requirement::below(Operation::List, "/v1/stream/é/").or(Operation::Read),
        ];
        for operation in Operation::ALL {
            needed.push(Requirement::at(operation, "/").or(operation));
        }
        let needs = CallerNeeds::of(&needed);
        assert_eq!(needs.requirements().collect::<Vec<_>>(), needed);
        assert_eq!(CallerNeeds::of(&[]).requirements().count(), 0);
        assert_eq!(size_of::<Option<CallerNeeds>>(), 16);
    }
}
