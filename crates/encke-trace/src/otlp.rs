//! Spans as messages of OTLP.

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind as OtlpKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};
use prost::Message;

use crate::span::{SpanKind, SpanValue, TraceSpan};

/// A request that exports spans, as the body of a POST.
pub(crate) fn encode(service: &str, spans: &[TraceSpan]) -> Vec<u8> {
    let request = ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(Resource {
                attributes: vec![
                    text("service.name", service),
                    text("service.version", VERSION),
                ],
                ..Resource::default()
            }),
            scope_spans: vec![ScopeSpans {
                scope: Some(InstrumentationScope {
                    name: "encke".into(),
                    version: VERSION.into(),
                    ..InstrumentationScope::default()
                }),
                spans: spans.iter().map(message).collect(),
                ..ScopeSpans::default()
            }],
            ..ResourceSpans::default()
        }],
    };
    request.encode_to_vec()
}

fn message(span: &TraceSpan) -> Span {
    let kind = match span.kind {
        SpanKind::Server => OtlpKind::Server,
        SpanKind::Internal => OtlpKind::Internal,
        SpanKind::Producer => OtlpKind::Producer,
    };
    Span {
        trace_id: span.context.trace.to_bytes().to_vec(),
        span_id: span.context.span.to_bytes().to_vec(),
        parent_span_id: span
            .parent
            .map_or(Vec::new(), |parent| parent.to_bytes().to_vec()),
        name: span.name.to_string(),
        kind: kind.into(),
        start_time_unix_nano: span.began_ns,
        end_time_unix_nano: span.ended_ns,
        attributes: span
            .attributes
            .iter()
            .map(|(key, value)| attribute(key, value))
            .collect(),
        status: span.failed.then(|| Status {
            code: StatusCode::Error.into(),
            ..Status::default()
        }),
        ..Span::default()
    }
}

fn attribute(key: &str, value: &SpanValue) -> KeyValue {
    match value {
        SpanValue::Text(value) => text(key, value),
        SpanValue::Number(number) => of(key, Value::IntValue(*number)),
    }
}

fn text(key: &str, value: &str) -> KeyValue {
    of(key, Value::StringValue(value.to_owned()))
}

fn of(key: &str, value: Value) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}

const VERSION: &str = env!("CARGO_PKG_VERSION");
