// SPDX-License-Identifier: Apache-2.0
// A sandbox with the official Java SDK (com.alibaba.opensandbox:sandbox 1.0.0): commands, files, a web server, the manager's calls.
//
//   mvn -f docs/examples/pom.xml dependency:copy-dependencies -DoutputDirectory=lib
//   eval "$(mayfly env)" && java -cp 'docs/examples/lib/*' docs/examples/Tour.java
import com.alibaba.opensandbox.sandbox.Sandbox;
import com.alibaba.opensandbox.sandbox.SandboxManager;
import com.alibaba.opensandbox.sandbox.config.ConnectionConfig;
import com.alibaba.opensandbox.sandbox.domain.exceptions.SandboxApiException;
import com.alibaba.opensandbox.sandbox.domain.models.execd.executions.Execution;
import com.alibaba.opensandbox.sandbox.domain.models.execd.executions.ExecutionHandlers;
import com.alibaba.opensandbox.sandbox.domain.models.execd.executions.OutputMessage;
import com.alibaba.opensandbox.sandbox.domain.models.execd.executions.RunCommandRequest;
import com.alibaba.opensandbox.sandbox.domain.models.execd.filesystem.ContentReplaceEntry;
import com.alibaba.opensandbox.sandbox.domain.models.execd.filesystem.MoveEntry;
import com.alibaba.opensandbox.sandbox.domain.models.execd.filesystem.SearchEntry;
import com.alibaba.opensandbox.sandbox.domain.models.execd.filesystem.SetPermissionEntry;
import com.alibaba.opensandbox.sandbox.domain.models.execd.filesystem.WriteEntry;
import com.alibaba.opensandbox.sandbox.domain.models.sandboxes.SandboxFilter;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.OffsetDateTime;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;

public class Tour {
	static Sandbox sandbox;
	static final String TAG = "java-" + ProcessHandle.current().pid();

	static void check(boolean holds, String what) {
		if (!holds)
			throw new AssertionError(what);
		System.out.println("ok: " + what);
	}

	/** This generation of the SDK gets each line without its ending. */
	static String text(List<OutputMessage> lines) {
		return lines.stream().map(OutputMessage::getText).collect(Collectors.joining("\n"));
	}

	static Execution background(String command) {
		return sandbox.commands().run(RunCommandRequest.builder().command(command).background(true).build());
	}

	static void commands() {
		StringBuilder seen = new StringBuilder();
		Execution run = sandbox.commands().run(RunCommandRequest.builder().command("echo one; echo two >&2; pwd; exit 3").workingDirectory("/usr")
			.handlers(ExecutionHandlers.builder().onStdout(m -> seen.append(m.getText())).build()).build());
		check(text(run.getLogs().getStdout()).equals("one\n/usr") && text(run.getLogs().getStderr()).equals("two"), "both streams");
		check(seen.toString().equals("one/usr"), "output was handed over as it came");
		check(run.getError().getName().equals("CommandExecError") && run.getError().getValue().equals("3"), "exit code 3");
		check(sandbox.commands().run("echo $FROM_CREATE").getError() == null, "exit code 0");
		Execution sleeper = background("sleep 100");
		try {
			// until there is nothing left to interrupt
			for (int i = 0; i < 1000; i++)
				sandbox.commands().interrupt(sleeper.getId());
			check(false, "an interrupt ends a command");
		} catch (SandboxApiException e) {
			check(e.getStatusCode() == 500 && e.getError().getCode().equals("RUNTIME_ERROR"), "an interrupt ends a command");
		}
	}

	static void files() {
		sandbox.files().createDirectories(List.of(WriteEntry.builder().path("/tmp/j").mode(755).build()));
		sandbox.files().write(List.of(WriteEntry.builder().path("/tmp/j/a.txt").data("first second").mode(644).build(),
			WriteEntry.builder().path("/tmp/j/b.bin").data(new byte[] {0, -1, 10}).mode(600).build()));
		check(sandbox.files().readFile("/tmp/j/a.txt").equals("first second"), "a file is read back");
		check(sandbox.files().readByteArray("/tmp/j/b.bin").length == 3, "bytes are read back");
		check(sandbox.files().readFile("/tmp/j/a.txt", "UTF-8", "bytes=6-").equals("second"), "a range of it");
		sandbox.files().replaceContents(List.of(ContentReplaceEntry.builder().path("/tmp/j/a.txt").oldContent("first").newContent("1st").build()));
		sandbox.files().moveFiles(List.of(MoveEntry.builder().src("/tmp/j/a.txt").dest("/tmp/j/sub/c.txt").build()));
		check(sandbox.files().readFile("/tmp/j/sub/c.txt").equals("1st second"), "replaced and moved");
		sandbox.files().setPermissions(List.of(SetPermissionEntry.builder().path("/tmp/j/sub/c.txt").mode(640).owner("nobody").group("nogroup").build()));
		var info = sandbox.files().readFileInfo(List.of("/tmp/j/sub/c.txt")).get("/tmp/j/sub/c.txt");
		check(info.getMode() == 640 && info.getOwner().equals("nobody") && info.getSize() == 10, "owner and mode");
		check(sandbox.files().search(SearchEntry.builder().path("/tmp/j").pattern("*.txt").build()).size() == 1, "search");
		sandbox.files().deleteFiles(List.of("/tmp/j/b.bin"));
		sandbox.files().deleteDirectories(List.of("/tmp/j"));
	}

	static void endpoint() throws Exception {
		sandbox.files().writeFile("/srv/index.html", "<h1>from java</h1>");
		background("python3 -m http.server 8000 --directory /srv");
		sandbox.commands().run("until python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8000))' 2>/dev/null; do sleep 0.1; done");
		String url = "http://" + sandbox.getEndpoint(8000).getEndpoint() + "/index.html";
		HttpResponse<String> page = HttpClient.newHttpClient().send(HttpRequest.newBuilder(URI.create(url)).build(), HttpResponse.BodyHandlers.ofString());
		check(page.statusCode() == 200 && page.body().contains("from java"), "a web server inside is reached");
	}

	static void lifecycle(ConnectionConfig config) {
		OffsetDateTime before = sandbox.getInfo().getExpiresAt();
		sandbox.renew(Duration.ofMinutes(30));
		check(sandbox.getInfo().getExpiresAt().isAfter(before), "renewed");
		var m = sandbox.getMetrics();
		check(m.getCpuCount() >= 1 && m.getMemoryUsedInMiB() <= m.getMemoryTotalInMiB(), "metrics");
		try (SandboxManager manager = SandboxManager.builder().connectionConfig(config).build()) {
			var found = manager.listSandboxInfos(SandboxFilter.builder().states("Running").metadata(Map.of("tour", TAG)).build());
			check(found.getSandboxInfos().stream().anyMatch(i -> i.getId().equals(sandbox.getId())), "the manager lists it");
			manager.renewSandbox(sandbox.getId(), Duration.ofMinutes(40));
			manager.pauseSandbox(sandbox.getId());
			check(manager.getSandboxInfo(sandbox.getId()).getStatus().getState().equals("Paused") && !sandbox.isHealthy(), "paused");
			manager.resumeSandbox(sandbox.getId());
			check(sandbox.isHealthy() && text(sandbox.commands().run("cat /srv/index.html").getLogs().getStdout()).contains("from java"), "resumed as it was");
		}
		// this version of the SDK has these calls, and none for snapshots and templates
		sandbox.pause();
		check(sandbox.getInfo().getStatus().getState().equals("Paused"), "paused by itself");
		sandbox.resume();
		try (Sandbox again = Sandbox.connector().sandboxId(sandbox.getId()).connectionConfig(config).connect()) {
			check(text(again.commands().run("cat /srv/index.html").getLogs().getStdout()).contains("from java"), "resumed, and connected to");
		}
		var id = sandbox.getId();
		sandbox.kill();
		try (SandboxManager manager = SandboxManager.builder().connectionConfig(config).build()) {
			manager.getSandboxInfo(id);
			check(false, "killed, and still there");
		} catch (SandboxApiException e) {
			check(e.getStatusCode() == 404 && e.getError().getCode().equals("DOCKER::SANDBOX_NOT_FOUND"), "killed");
		}
	}

	public static void main(String[] args) throws Exception {
		// OPEN_SANDBOX_DOMAIN and OPEN_SANDBOX_API_KEY say where
		ConnectionConfig config = ConnectionConfig.builder().requestTimeout(Duration.ofMinutes(2)).build();
		sandbox = Sandbox.builder().image(System.getenv().getOrDefault("MAYFLY_IMAGE", "python")).connectionConfig(config).timeout(Duration.ofMinutes(10))
			.readyTimeout(Duration.ofMinutes(2)).resource(Map.of("cpu", "1", "memory", "512Mi")).metadata("tour", TAG).env("FROM_CREATE", "yes").build();
		try {
			commands();
			files();
			endpoint();
			lifecycle(config);
		} catch (Throwable t) {
			sandbox.kill();
			throw t;
		} finally {
			sandbox.close();
		}
	}
}
