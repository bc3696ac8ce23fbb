//! Scripts for POSIX shells are executed. Scripts for PowerShell are compared as text.

use std::io::Write;
use std::process::{Output, Stdio};

use super::*;

fn script(shell: &str) -> Script {
    Script { shell: shell.to_owned(), ..Script::default() }
}

fn run_framed(shell: &str, script: &Script, blocks: &[ScriptBlock<'_>]) -> Output {
    let exports = [("BIG".into(), "it's\n$HOME `x` \\n".into()), ("UID".into(), "7".into())];
    let frame = ScriptFrame { script, directory: Path::new("/"), started: None, blocks };
    let text = posix::text(&frame, shell == "bash", &exports);
    let mut child = std::process::Command::new(find_program(shell).unwrap())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn run(shell: &str, commands: &[&str]) -> Output {
    let commands: Vec<String> = commands.iter().map(ToString::to_string).collect();
    run_framed(shell, &script(shell), &[("script_step", &commands)])
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn commands_are_echoed_in_bold_green_and_run_in_order() {
    for shell in ["bash", "sh"] {
        let output = run(shell, &["  echo 'a'  ", "pwd", "", "for i in 1 2; do\n  echo $i\ndone"]);
        assert_eq!(
            text(&output),
            "\x1b[32;1m$ echo 'a'\x1b[0;m\na\n\x1b[32;1m$ pwd\x1b[0;m\n/\n\n\
             \x1b[32;1m$ for i in 1 2; do # collapsed multi-line command\x1b[0;m\n1\n2\n"
        );
        assert!(output.status.success());
    }
}

#[test]
fn first_failing_command_ends_script_with_its_status() {
    for shell in ["bash", "sh"] {
        let output = run(shell, &["sh -c 'exit 7'", "echo never"]);
        assert_eq!(output.status.code(), Some(7));
        assert!(!text(&output).contains("\nnever"));
    }
    assert_eq!(run("bash", &["false | true", "echo never"]).status.code(), Some(1));
    assert_eq!(run("bash", &["exit 42"]).status.code(), Some(42));
}

#[test]
fn command_cannot_read_the_script() {
    for shell in ["bash", "sh"] {
        let output = run(shell, &["cat", "echo after"]);
        // `cat` prints nothing, not even the end of the script.
        assert_eq!(text(&output), "\x1b[32;1m$ cat\x1b[0;m\n\x1b[32;1m$ echo after\x1b[0;m\nafter\n");
    }
}

#[test]
fn quoting_keeps_every_character() {
    for shell in ["bash", "sh"] {
        let output = run(shell, &["printf '%s' \"$BIG\"", "echo \"it's \\\\ 'q' %s\""]);
        assert!(text(&output).contains("it's\n$HOME `x` \\n"), "{output:?}");
        assert!(output.status.success(), "the script must not set UID, which is read-only in bash: {output:?}");
    }
}

#[test]
fn operator_scripts_run_before_and_after_commands() {
    let [before, after] = ["echo before", "echo after"].map(|text| vec![text.to_owned()]);
    for (command, expected) in [("echo own", "before own after"), ("false", "before")] {
        let own = vec![command.to_owned()];
        let blocks = [("pre_build_script", &*before), ("script_step", &*own), ("post_build_script", &*after)];
        let output = run_framed("bash", &script("bash"), &blocks);
        let printed: Vec<String> =
            text(&output).lines().filter(|line| !line.contains('$')).map(str::to_owned).collect();
        assert_eq!(printed.join(" "), expected);
    }
}

#[test]
fn multi_line_command_is_printed_in_section_that_ends_before_its_output() {
    let sections = Script { sections: true, ..Script::default() };
    let commands = vec!["echo one".to_owned(), "echo a\necho 100% \\n".to_owned()];
    for shell in ["bash", "sh"] {
        let output =
            run_framed(shell, &Script { shell: shell.to_owned(), ..sections.clone() }, &[("script_step", &commands)]);
        let text = text(&output);
        let stamps: Vec<&str> = text.split(':').filter(|part| part.parse::<u64>().is_ok()).collect();
        let [start, end] = &stamps[..] else { panic!("{text:?}") };
        assert_eq!(
            text,
            format!(
                "\x1b[32;1m$ echo one\x1b[0;m\none\n\
                 section_start:{start}:section_script_step_1[hide_duration=true,collapsed=true]\r\x1b[0K\
                 \x1b[32;1m$ echo a\necho 100% \\n\x1b[0;m\n\
                 section_end:{end}:section_script_step_1\r\x1b[0K\na\n100% n\n"
            )
        );
    }
}

#[test]
fn exit_codes_are_checked_without_errexit() {
    let checked = Script { check_exit_codes: true, ..script("bash") };
    let commands = vec!["set +e".to_owned(), "sh -c 'exit 5'".to_owned(), "echo never".to_owned()];
    let output = run_framed("bash", &checked, &[("script_step", &commands)]);
    assert_eq!(output.status.code(), Some(5));
    assert!(!text(&output).contains("\nnever"), "{output:?}");
    assert!(run_framed("bash", &script("bash"), &[("script_step", &commands)]).status.success());
}

#[test]
fn traced_shell_prints_variables_and_commands() {
    let traced = Script { debug: true, ..script("bash") };
    let output = run_framed("bash", &traced, &[("script_step", &["true".to_owned()])]);
    let printed = String::from_utf8(output.stderr).unwrap();
    assert!(printed.contains("+ export 'BIG=") || printed.contains("export BIG="), "{printed}");
    assert!(printed.contains("+ true\n"), "{printed}");
}

fn powershell_text(script: &Script) -> String {
    let commands = ["Write-Output \"a\"".to_owned(), String::new(), "if ($true) {\n  1\n}".to_owned()];
    let blocks = [("script_step", &commands[..])];
    let frame = ScriptFrame { script, directory: Path::new("/builds/p"), started: None, blocks: &blocks };
    let variables = [("A".into(), "1 $x `\"“#'\n".into())];
    powershell::text(&frame, &variables)
}

#[test]
fn powershell_7_script_stops_at_errors() {
    let check = "if(!$?) { Exit &{if($LASTEXITCODE) {$LASTEXITCODE} else {1}} }";
    assert_eq!(
        powershell_text(&script("pwsh")),
        format!(
            "#!/usr/bin/env pwsh\n& {{\n\n$ErrorActionPreference = \"Stop\"\n\
             ${{A}}=\"1 `$x ```\"`“`#`'`n\"\n${{env:A}}=${{A}}\ncd \"/builds/p\"\n{check}\n\n\
             echo \"\x1b[32;1m`$ Write-Output `\"a`\"\x1b[0;m\"\nWrite-Output \"a\"\n{check}\n\n\
             echo \"\"\n\n{check}\n\n\
             echo \"\x1b[32;1m`$ if (`$true) {{ `# collapsed multi-line command\x1b[0;m\"\n\
             if ($true) {{\n  1\n}}\n{check}\n\n}}\n\n"
        )
    );
}

#[test]
fn windows_powershell_script_has_crlf_and_its_file_starts_with_a_byte_order_mark() {
    let piped = powershell_text(&script("powershell"));
    assert!(piped.starts_with("& {\r\n\r\n${A}=") && piped.ends_with("}\r\n\r\n"), "{piped:?}");
    assert!(!piped.replace("\r\n", "").contains('\n') && !piped.contains("ErrorActionPreference"), "{piped:?}");
    let file = powershell_text(&Script { as_file: true, debug: true, ..script("powershell") });
    assert!(file.starts_with("\u{feff}Set-PSDebug -Trace 2\r\n"), "{file:?}");
}

#[test]
fn powershell_arguments_do_not_contain_the_script() {
    let arguments = |script: &Script, file: Option<&Path>| {
        let frame = ScriptFrame { script, directory: Path::new("/"), started: None, blocks: &[] };
        let words = powershell::arguments(&frame, file);
        words.into_iter().map(|word| word.into_string().unwrap()).collect::<Vec<_>>().join(" ")
    };
    let base = "-NoProfile -NoLogo -InputFormat text -OutputFormat text -NonInteractive -ExecutionPolicy Bypass";
    assert_eq!(arguments(&script("powershell"), None), format!("{base} -Command -"));
    let file = arguments(&script("powershell"), Some(Path::new("/t/script.ps1")));
    assert_eq!(file, "-NoProfile -NonInteractive -ExecutionPolicy Bypass -File /t/script.ps1");
    let pwsh = arguments(&script("pwsh"), None);
    let (flags, encoded) = pwsh.rsplit_once(' ').unwrap();
    assert_eq!(flags, format!("{base} -EncodedCommand"));
    let wide = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, encoded).unwrap();
    let wide: Vec<u16> = wide.chunks(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect();
    assert!(String::from_utf16(&wide).unwrap().contains("\r\npwsh -NoProfile -NonInteractive -Command -\r\n"));
}
