//! The header fields that protocols read, and what each may change.
//!
//! A signed URL signs a method, a path and parameters. Everything else of the request is chosen by whoever has the URL, so that each
//! protocol declares for its fields whether that is all right. A field that no protocol declares does not reach a protocol by a signed
//! URL, so that a new field is harmless until somebody has decided about it.

use crate::subprotocol::SUBPROTOCOL_FIELD;

/// The header fields of a protocol.
#[derive(Debug)]
pub(crate) struct KnownFields {
    /// Those of requests that it reads. Pages of allowed origins may send them.
    pub(crate) request: &'static [KnownField],
    /// Those of responses that pages of allowed origins may read, beside the ones that a browser always shows (Fetch, section 2.2.6).
    pub(crate) response: &'static [&'static str],
}

impl KnownFields {
    /// No fields.
    pub(crate) const NONE: KnownFields = KnownFields {
        request: &[],
        response: &[],
    };
}

/// A header field that a protocol reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KnownField {
    pub(crate) name: &'static str,
    /// Why a signed URL leaves the field to its caller, or does not.
    change: FieldChange,
}

#[derive(Clone, Copy, Debug)]
enum FieldChange {
    /// It changes what is sent, or the form of the response, and neither what is done nor where.
    Nothing,
    /// It changes what the request does or where it reads, with all methods or with this one only.
    Operation(Option<&'static str>),
}

impl KnownField {
    /// A field that anybody may set who may send the request.
    pub(crate) const fn harmless(name: &'static str) -> Self {
        KnownField {
            name,
            change: FieldChange::Nothing,
        }
    }

    /// A field that a URL must sign.
    pub(crate) const fn changing(name: &'static str) -> Self {
        KnownField {
            name,
            change: FieldChange::Operation(None),
        }
    }

    /// A field that a URL for this method must sign.
    pub(crate) const fn changing_with(method: &'static str, name: &'static str) -> Self {
        KnownField {
            name,
            change: FieldChange::Operation(Some(method)),
        }
    }

    /// Whether a URL must sign the field.
    pub(crate) fn must_be_signed(&self, method: &str) -> bool {
        match self.change {
            FieldChange::Nothing => false,
            FieldChange::Operation(only) => only.is_none_or(|only| only == method),
        }
    }

    pub(crate) fn is_named(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }
}

/// The fields that all protocols get: the host is part of the URLs in responses, and a client of a channel offers the protocols that it
/// speaks.
pub(crate) const SHARED_FIELDS: &[KnownField] = &[
    KnownField::harmless("Host"),
    KnownField::harmless(SUBPROTOCOL_FIELD),
];
