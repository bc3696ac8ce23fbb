//! Writes reports as JUnit XML.

use std::time::Duration;

use quick_xml::Writer;
use quick_xml::events::{BytesDecl, BytesText, Event};

#[derive(Debug)]
pub(crate) struct Suite {
    pub(crate) name: String,
    pub(crate) cases: Vec<Case>,
}

#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) class: String,
    pub(crate) time: Duration,
    pub(crate) outcome: Outcome,
    pub(crate) output: String,
}

#[derive(Debug)]
pub(crate) enum Outcome {
    Passed,
    Failed {
        message: String,
        /// Empty if the message is complete.
        details: String,
    },
    Skipped(String),
}

pub(crate) fn report(suites: &[Suite]) -> String {
    let mut xml = Writer::new_with_indent(Vec::new(), b' ', 2);
    // Writing to memory does not fail.
    let _ = write(&mut xml, suites);
    let mut text = String::from_utf8_lossy(&xml.into_inner()).into_owned();
    text.push('\n');
    text
}

fn write(xml: &mut Writer<Vec<u8>>, suites: &[Suite]) -> std::io::Result<()> {
    xml.write_event(Event::Decl(BytesDecl::new("1.0", Some("UTF-8"), None)))?;
    xml.create_element("testsuites").write_inner_content(|xml| {
        for suite in suites {
            let count = |matches: fn(&Outcome) -> bool| {
                suite.cases.iter().filter(|case| matches(&case.outcome)).count().to_string()
            };
            xml.create_element("testsuite")
                .with_attribute(("name", &*without_forbidden(&suite.name)))
                .with_attribute(("tests", &*suite.cases.len().to_string()))
                .with_attribute(("failures", &*count(|outcome| matches!(outcome, Outcome::Failed { .. }))))
                .with_attribute(("skipped", &*count(|outcome| matches!(outcome, Outcome::Skipped(_)))))
                .write_inner_content(|xml| suite.cases.iter().try_for_each(|case| write_case(xml, case)))?;
        }
        Ok(())
    })?;
    Ok(())
}

fn write_case(xml: &mut Writer<Vec<u8>>, case: &Case) -> std::io::Result<()> {
    let element = xml
        .create_element("testcase")
        .with_attribute(("name", &*without_forbidden(&case.name)))
        .with_attribute(("classname", &*without_forbidden(&case.class)))
        .with_attribute(("time", &*format!("{:.3}", case.time.as_secs_f64())));
    if matches!(case.outcome, Outcome::Passed) && case.output.is_empty() {
        element.write_empty()?;
        return Ok(());
    }
    element.write_inner_content(|xml| {
        match &case.outcome {
            Outcome::Passed => {}
            Outcome::Failed { message, details } => {
                let failure = xml.create_element("failure").with_attribute(("message", &*without_forbidden(message)));
                if details.is_empty() {
                    failure.write_empty()?;
                } else {
                    failure.write_text_content(BytesText::new(&without_forbidden(details)))?;
                }
            }
            Outcome::Skipped(reason) => {
                xml.create_element("skipped").with_attribute(("message", &*without_forbidden(reason))).write_empty()?;
            }
        }
        if !case.output.is_empty() {
            xml.create_element("system-out").write_text_content(BytesText::new(&without_forbidden(&case.output)))?;
        }
        Ok(())
    })?;
    Ok(())
}

/// Removes terminal codes, and the characters that XML forbids even if they are escaped.
fn without_forbidden(text: &str) -> String {
    let text = anstream::adapter::strip_str(text).to_string();
    text.chars()
        .filter(|c| matches!(c, '\n' | '\t') || !c.is_control() && !matches!(c, '\u{fffe}' | '\u{ffff}'))
        .collect()
}
