//! Cases about the settings in `Init`.

use serde_json::{Map, Value, json};

use super::plan::Plan;
use super::subject::{Missing, Subject, bytes};
use super::verdict::{Outcome, Run};

pub(super) async fn run(run: &mut Run<'_>) {
    let plan = run.plan;
    if run.has_failed("H1") {
        return;
    }
    let outcome = letter_case(plan).await;
    run.judge("P6", outcome);
    let outcome = no_content(plan).await;
    run.say("P7", outcome);
    let outcome = no_connector(plan).await;
    run.say("P8", outcome);
}

/// Starts a process and returns its response to `Init`.
async fn init(plan: &Plan, config: Vec<u8>, with_connector: bool) -> Result<Result<(), Missing>, String> {
    let mut subject = Subject::start(plan, &[], |_| {}).await?;
    let answer = subject.init(config, with_connector.then_some(&plan.connector)).await;
    subject.end().await;
    Ok(answer.map(drop))
}

async fn letter_case(plan: &Plan) -> Result<(), String> {
    let mut config = Map::new();
    if let Value::Object(given) = &plan.config {
        for (key, value) in given {
            let other = if key.chars().any(char::is_uppercase) { key.to_lowercase() } else { key.to_uppercase() };
            config.insert(other, value.clone());
        }
    }
    let answer = init(plan, bytes(&Value::Object(config.clone())), true).await?;
    answer.map_err(|missing| format!("keys in another letter case: {}", missing.text("Init")))?;
    config.insert("muster_unknown_key".to_owned(), json!({"a": [1]}));
    let answer = init(plan, bytes(&Value::Object(config)), true).await?;
    answer.map_err(|missing| format!("with an unknown key: {}", missing.text("Init")))
}

async fn no_content(plan: &Plan) -> Outcome {
    let asked = async {
        let empty = init(plan, Vec::new(), true).await?;
        if let Err(missing @ (Missing::Late(_) | Missing::Broken(_))) = empty {
            return Err(format!("without a byte of settings: {}", missing.text("Init")));
        }
        if !plan.config.is_null() {
            // A plugin that requires settings may handle missing ones as it likes.
            return Ok(empty.is_err());
        }
        for config in ["null", "{}"] {
            let answer = init(plan, config.into(), true).await?;
            answer.map_err(|missing| format!("with the settings {config}: {}", missing.text("Init")))?;
        }
        Ok(empty.is_err())
    };
    match asked.await {
        Ok(true) => Outcome::Pass,
        Ok(false) => {
            Outcome::Warn("no byte at all is taken for settings; Go plugins say `unmarshaling config`".to_owned())
        }
        Err(error) => Outcome::Fail(error),
    }
}

async fn no_connector(plan: &Plan) -> Outcome {
    match init(plan, bytes(&plan.config), false).await {
        Ok(Ok(())) => Outcome::Pass,
        Ok(Err(missing @ Missing::Late(_))) => Outcome::Fail(missing.text("Init")),
        Ok(Err(missing)) => Outcome::Warn(format!(
            "{} (so do plugins with Go's library; today's hosts always send them)",
            missing.text("Init")
        )),
        Err(error) => Outcome::Fail(error),
    }
}
