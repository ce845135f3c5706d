import java.util.List;
import org.springframework.ai.document.MetadataMode;
import org.springframework.ai.openai.OpenAiEmbeddingModel;
import org.springframework.ai.openai.OpenAiEmbeddingOptions;
import org.springframework.ai.openai.api.OpenAiApi;

/** Embeds two texts with Spring AI, unmodified: its HTTP client is the JDK's, which offers HTTP/2 and sends chunks. */
public class Embed {
  public static void main(String[] arguments) {
    String target = System.getenv().getOrDefault("HTTP_TARGET", "localhost:8000");
    OpenAiApi api = OpenAiApi.builder().baseUrl("http://" + target).apiKey("any").build();
    OpenAiEmbeddingOptions options = OpenAiEmbeddingOptions.builder().model("all-minilm-l6-v2").build();
    OpenAiEmbeddingModel model = new OpenAiEmbeddingModel(api, MetadataMode.EMBED, options);
    List<float[]> vectors = model.embed(List.of("who wrote hamlet", "how tall is the eiffel tower"));
    System.out.println("vectors: " + vectors.size() + " dimensions: " + vectors.get(0).length);
  }
}
