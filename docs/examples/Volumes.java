// SPDX-License-Identifier: Apache-2.0
// Two sandboxes share a claim, used with the official Java SDK (com.alibaba.opensandbox:sandbox 1.0.0); the claim is deleted with the last of them.
// The SDK's create has no volumes, so the create is a plain request; everything after it is the SDK. With MAYFLY_HOST_FOLDER also a folder of the host.
//
//   mvn -f docs/examples/pom.xml dependency:copy-dependencies -DoutputDirectory=lib
//   eval "$(mayfly env)" && java -cp 'docs/examples/lib/*' docs/examples/Volumes.java
import com.alibaba.opensandbox.sandbox.Sandbox;
import com.alibaba.opensandbox.sandbox.config.ConnectionConfig;
import com.alibaba.opensandbox.sandbox.domain.models.execd.executions.Execution;
import com.alibaba.opensandbox.sandbox.domain.models.execd.executions.OutputMessage;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.List;
import java.util.UUID;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;

public class Volumes {
	static final String CLAIM = "java-" + ProcessHandle.current().pid();

	static String env(String name, String otherwise) {
		String v = System.getenv(name);
		return v == null ? otherwise : v;
	}

	static Sandbox create(String... volumes) throws Exception {
		String body = "{\"image\":{\"uri\":\"" + env("MAYFLY_IMAGE", "base") + "\"},\"entrypoint\":[\"tail\",\"-f\",\"/dev/null\"],\"timeout\":600,"
			+ "\"resourceLimits\":{\"cpu\":\"1\",\"memory\":\"256Mi\"},\"volumes\":[" + String.join(",", volumes) + "]}";
		HttpRequest request = HttpRequest.newBuilder(URI.create("http://" + env("OPEN_SANDBOX_DOMAIN", "127.0.0.1:8080") + "/v1/sandboxes"))
			.header("OPEN-SANDBOX-API-KEY", env("OPEN_SANDBOX_API_KEY", "")).header("Content-Type", "application/json").timeout(Duration.ofMinutes(5))
			.POST(HttpRequest.BodyPublishers.ofString(body)).build();
		HttpResponse<String> answer = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
		Matcher id = Pattern.compile("\"id\"\\s*:\\s*\"([0-9a-f-]{36})\"").matcher(answer.body());
		if (answer.statusCode() != 202 || !id.find())
			throw new AssertionError(answer.body());
		return Sandbox.connector().sandboxId(UUID.fromString(id.group(1)))
			.connectionConfig(ConnectionConfig.builder().requestTimeout(Duration.ofMinutes(5)).build()).connect();
	}

	static String claim(String more) {
		return "{\"name\":\"data\",\"mountPath\":\"/data\",\"pvc\":{\"claimName\":\"" + CLAIM + "\",\"deleteOnSandboxTermination\":true}" + more + "}";
	}

	static String text(List<OutputMessage> lines) {
		return lines.stream().map(OutputMessage::getText).collect(Collectors.joining(" ")).trim().replaceAll("\\s+", " ");
	}

	static void hostFolder(String folder) throws Exception {
		String host = "\"host\":{\"path\":\"" + folder + "\"}";
		Sandbox box = create("{\"name\":\"all\",\"mountPath\":\"/all\"," + host + "}",
			"{\"name\":\"train\",\"mountPath\":\"/train\",\"subPath\":\"datasets/train\",\"readOnly\":true," + host + "}");
		try {
			System.out.println("host: " + text(box.commands().run("cat /all/marker.txt /train/marker.txt; ls /train").getLogs().getStdout()));
			box.files().writeFile("/all/written", "by java");
			Execution refused = box.commands().run("echo no >/train/new");
			System.out.println("host refused: " + (refused.getError() != null && text(refused.getLogs().getStderr()).contains("Read-only")));
		} finally {
			box.kill();
		}
	}

	public static void main(String[] args) throws Exception {
		Sandbox writer = create(claim(""));
		Sandbox reader = create(claim(",\"readOnly\":true,\"subPath\":\"out\""));
		try {
			writer.files().writeFile("/data/out/result", "42\n");
			Execution run = reader.commands().run("sleep 1; cat /data/result; echo no >/data/result");
			System.out.println("read: " + text(run.getLogs().getStdout()));
			System.out.println("refused: " + text(run.getLogs().getStderr()).contains("Read-only"));
		} finally {
			reader.kill();
			writer.kill();
		}
		if (System.getenv("MAYFLY_HOST_FOLDER") != null)
			hostFolder(System.getenv("MAYFLY_HOST_FOLDER"));
		System.exit(0);
	}
}
