//! Cases about the settings in `Init`.

use serde_json::{Map, Value, json};

use super::plan::Plan;
use super::plugin_process::{CallFailure, PluginUnderTest, config_bytes};
use super::verdict::{Outcome, Run};

pub(super) async fn run(run: &mut Run<'_>) {
    let plan = run.plan;
    if run.has_failed("H1") {
        return;
    }
    let outcome = check_letter_case(plan).await;
    run.record_result("P6", outcome);
    let outcome = check_empty_config(plan).await;
    run.record("P7", outcome);
    let outcome = check_missing_connector(plan).await;
    run.record("P8", outcome);
}

/// Starts a process and returns its response to `Init`. The outer error means that the start failed.
async fn init(plan: &Plan, config: Vec<u8>, with_connector: bool) -> Result<Result<(), CallFailure>, String> {
    let mut plugin = PluginUnderTest::start(plan, &[], |_| {}).await?;
    let answer = plugin.init(config, with_connector.then_some(&plan.connector)).await;
    plugin.kill().await;
    Ok(answer.map(drop))
}

async fn check_letter_case(plan: &Plan) -> Result<(), String> {
    let mut config = Map::new();
    if let Value::Object(original) = &plan.config {
        for (key, value) in original {
            let swapped = if key.chars().any(char::is_uppercase) { key.to_lowercase() } else { key.to_uppercase() };
            config.insert(swapped, value.clone());
        }
    }
    let answer = init(plan, config_bytes(&Value::Object(config.clone())), true).await?;
    answer.map_err(|failure| format!("keys in another letter case: {}", failure.text("Init")))?;
    config.insert("muster_unknown_key".to_owned(), json!({"a": [1]}));
    let answer = init(plan, config_bytes(&Value::Object(config)), true).await?;
    answer.map_err(|failure| format!("with an unknown key: {}", failure.text("Init")))
}

async fn check_empty_config(plan: &Plan) -> Outcome {
    let rejects_empty = async {
        let empty = init(plan, Vec::new(), true).await?;
        if let Err(failure @ (CallFailure::Timeout(_) | CallFailure::Disconnected(_))) = empty {
            return Err(format!("with empty settings: {}", failure.text("Init")));
        }
        if !plan.config.is_null() {
            // A plugin that requires settings may accept or reject `null` and `{}`.
            return Ok(empty.is_err());
        }
        for config in ["null", "{}"] {
            let answer = init(plan, config.into(), true).await?;
            answer.map_err(|failure| format!("with the settings {config}: {}", failure.text("Init")))?;
        }
        Ok(empty.is_err())
    };
    match rejects_empty.await {
        Ok(true) => Outcome::Pass,
        Ok(false) => Outcome::Warn("accepts empty settings; Go plugins return `unmarshaling config`".to_owned()),
        Err(error) => Outcome::Fail(error),
    }
}

async fn check_missing_connector(plan: &Plan) -> Outcome {
    match init(plan, config_bytes(&plan.config), false).await {
        Ok(Ok(())) => Outcome::Pass,
        Ok(Err(failure @ CallFailure::Timeout(_))) => Outcome::Fail(failure.text("Init")),
        Ok(Err(failure)) => Outcome::Warn(format!(
            "{}; plugins with Go's library fail as well, but current hosts always send the settings",
            failure.text("Init")
        )),
        Err(error) => Outcome::Fail(error),
    }
}
