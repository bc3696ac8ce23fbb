//! Checks of the steps of the operator and of the step policy (check C111).

use super::super::problem::Problem;
use super::super::steps;
use super::Check;

pub(super) fn check(check: &mut Check<'_>) {
    for runner in check.runners {
        let (_, problems) = steps::read(&runner.table, &runner.executor, check.facts.files_checked);
        for problem in problems {
            let span = match problem.step.map(|(list, index)| (format!("steps.{list}"), index)) {
                Some((list, index)) => {
                    let table = runner.table.tables(&list).get(index);
                    table.map_or_else(|| runner.table.span_of(&list), |table| table.header.clone())
                }
                None => runner.table.span_of("steps.policy"),
            };
            let message = format!("{}; this runner requests no jobs", problem.message);
            let found = Problem::new("C111", message).of(runner.index, &runner.name);
            check.add(found.at(&span).help(problem.help));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{clean, count, found, found_with};

    fn runner(steps: &str) -> String {
        format!("[[runners]]\nname=\"a\"\nurl=\"https://g.example\"\ntoken=\"t\"\nexecutor=\"shell\"\n{steps}")
    }

    #[test]
    fn invalid_step_of_the_operator_is_reported_at_its_table() {
        let step = |keys: &str| runner(&format!("[[runners.steps.before]]\n{keys}\n"));
        clean("C111", &step("name = \"audit\"\nscript = [\"id\", \"date\"]\nenv = { A = \"1\" }\ntimeout = \"30s\""));
        clean("C111", &step("name = \"audit\"\nstep = \"/opt/steps/audit\"\n[runners.steps.before.inputs]\nlevel = 3"));
        for (keys, message) in [
            ("script = \"id\"", "is not a valid name"),
            ("name = \"a-b\"\nscript = \"id\"", "`a-b` is not a valid name"),
            ("name = \"a\"", "needs either `script` or `step`"),
            ("name = \"a\"\nscript = \"id\"\nstep = \"/x\"", "needs either `script` or `step`"),
            ("name = \"a\"\nstep = \"./x\"", "whose content the job controls"),
            ("name = \"a\"\nscript = \"id\"\nenv = { \"A-B\" = \"1\" }", "`A-B` is not a valid variable"),
            ("name = \"a\"\nscript = \"id\"\n[runners.steps.before.inputs]\nx = 1", "a script has no inputs"),
        ] {
            let rendered = found("C111", &step(keys));
            assert!(rendered.starts_with("6:") && rendered.contains(message), "{rendered}");
            assert!(rendered.contains("this runner requests no jobs"), "{rendered}");
        }
        let exporting = |exports: &str| step(&format!("name = \"a\"\nstep = \"/x\"\nexports = {{ {exports} }}"));
        clean("C111", &exporting("A = \"masked\", B = \"file\", C = \"plain\""));
        for (text, message) in [
            (exporting("A = \"secret\""), "`secret` is not a valid kind of the export A"),
            (exporting("\"A-B\" = \"plain\""), "`A-B` is not a valid variable name"),
            (exporting("A = \"plain\"").replace("step = \"/x\"", "script = \"id\""), "only a `step` before the job"),
            (exporting("A = \"plain\"").replace("steps.before", "steps.before_upload"), "only a `step` before the job"),
            (exporting("A = \"plain\"").replace("steps.before", "steps.after"), "only a `step` before the job"),
        ] {
            let rendered = found("C111", &text);
            assert!(rendered.starts_with("6:") && rendered.contains(message), "{rendered}");
        }
        clean("C111", &step("name = \"sign\"\nstep = \"/x\"").replace("steps.before", "steps.before_upload"));
        let twice = "[[runners.steps.after]]\nname = \"a\"\nscript = \"id\"\n".repeat(2);
        assert!(found("C111", &runner(&twice)).contains("two steps after the job have the name `a`"));
    }

    #[test]
    fn invalid_replacement_of_a_builtin_step_is_reported_at_its_table() {
        let replace = |keys: &str| format!("[[runners.steps.replace]]\n{keys}\n");
        let valid = "builtin = \"cache/restore\"\nstep = \"registry.example.com/cache:1\"\ninputs = { bucket = \"b\" }";
        clean("C111", &runner(&replace(valid)));
        for (keys, message, help) in [
            ("step = \"/x\"", "`` is not a built-in step that can be replaced", "set `builtin` to one of: checkout, "),
            ("builtin = \"cache\"\nstep = \"/x\"", "`cache` is not a built-in step", "cache/restore, cache/save, "),
            ("builtin = \"cleanup\"\nstep = \"/x\"", "`cleanup` is not a built-in step that can be replaced", ""),
            ("builtin = \"checkout\"", "the replacement of `checkout` has no step", "set `step` to an absolute path"),
            ("builtin = \"checkout\"\nstep = \"./x\"", "`checkout` is relative to the job's", "use an absolute path"),
        ] {
            let rendered = found("C111", &runner(&replace(keys)));
            assert!(rendered.starts_with("6:") && rendered.contains(message), "{rendered}");
            assert!(rendered.contains(help) && rendered.contains("this runner requests no jobs"), "{rendered}");
        }
        let twice = found("C111", &runner(&replace(valid).repeat(2)));
        assert!(
            twice.starts_with("10:") && twice.contains("two steps replace the built-in step `cache/restore`"),
            "{twice}"
        );
    }

    #[test]
    fn custom_executor_has_no_steps_of_the_operator() {
        for steps in [
            "[[runners.steps.after]]\nname = \"a\"\nscript = \"id\"\n",
            "[[runners.steps.replace]]\nbuiltin = \"checkout\"\nstep = \"/x\"\n",
        ] {
            let text = runner(steps).replace("\"shell\"", "\"custom\"");
            assert!(found("C111", &text).contains("custom executor supports neither"));
            assert_eq!(count("C111", &runner(steps)), 0);
        }
    }

    #[test]
    fn problem_of_a_policy_names_file_and_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("policy.toml");
        let text = runner(&format!("[runners.steps]\npolicy = \"{}\"\n", path.display()));
        let problem = || found_with("C111", &text, |facts| facts.files_checked = true);
        assert!(problem().contains("failed to read the step policy"), "{}", problem());
        for (policy, line, message) in [
            ("default = \"deny\"\n[[rules]]\nallow = \"gitt:**\"", 3, "matches no step"),
            ("[[rules]]\ndeny = \"local:./ci/step.yml\"", 2, "matches no step"),
            ("default = \"no\"", 1, "is not a valid default"),
            ("\n[limits]\nnetwork = \"some\"", 3, "is not a valid value of `network`"),
            ("[limits]\ncpu = \"many\"", 2, "is not a valid value of `cpu`"),
            ("[limits]\ndisk = \"much\"", 2, "is not a valid value of `disk`"),
            ("[limits]\nmemroy = \"1g\"", 2, "unknown field `memroy`"),
            ("[[rules]]\nallow = \"script\"\nlimits = { disk = \"1 big\" }", 3, "is not a valid value of `disk`"),
            ("[[rules]]\nallow = \"git:**\"\n[rules.limits]\nmemory = \"much\"", 4, "is not a valid value of `memory`"),
            ("[[rules]]\ndeny = \"git:**\"\nlimits = { network = \"none\" }", 3, "the rule cannot have limits"),
            ("[[rules]]\nallow = \"builtin:**\"\nlimits = { cpu = \"1\" }", 3, "the rule cannot have limits"),
            ("[[before]]\nname = \"x\"\n", 1, "needs either `script` or `step`"),
            ("[[rules]]\ndeny = ", 2, ""),
        ] {
            std::fs::write(&path, policy).unwrap();
            let rendered = problem();
            assert!(rendered.contains(&format!("policy.toml:{line}: ")), "{rendered}");
            assert!(rendered.contains(message) && rendered.contains("requests no jobs"), "{rendered}");
        }
    }
}
