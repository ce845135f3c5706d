import embedding.v1.EmbeddingOuterClass.EmbedRequest;
import embedding.v1.EmbeddingOuterClass.EmbedResponse;
import embedding.v1.EmbeddingOuterClass.Input;
import java.nio.ByteOrder;
import java.time.Duration;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.UUID;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class EmbedByKafka {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", System.getenv().getOrDefault("KAFKA_BOOTSTRAP", "localhost:9092"));
        settings.put("enable.idempotence", "true");
        Set<String> waiting = new HashSet<>();
        Map<String, float[]> vectors = new HashMap<>();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(
                        settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
                KafkaProducer<byte[], byte[]> producer =
                        new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            List<TopicPartition> replies = consumer.partitionsFor("embed.replies.v1").stream()
                    .map(each -> new TopicPartition(each.topic(), each.partition()))
                    .collect(Collectors.toList());
            consumer.assign(replies);
            consumer.seekToEnd(replies);
            replies.forEach(consumer::position);
            for (int n = 0; n < 100; n++) {
                String id = UUID.randomUUID().toString();
                EmbedRequest request = EmbedRequest.newBuilder()
                        .setRequestId(id)
                        .addInputs(Input.newBuilder().setText("question " + n))
                        .build();
                ProducerRecord<byte[], byte[]> record =
                        new ProducerRecord<>("embed.requests.v1", "demo".getBytes(), request.toByteArray());
                record.headers().add("content-type", "application/x-protobuf".getBytes());
                waiting.add(id);
                producer.send(record);
            }
            producer.flush();
            long end = System.currentTimeMillis() + 60_000;
            while (!waiting.isEmpty() && System.currentTimeMillis() < end) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
                    EmbedResponse reply = EmbedResponse.parseFrom(record.value());
                    if (!waiting.remove(reply.getRequestId())) {
                        continue; // another's reply, or a duplicate
                    }
                    if (reply.getStatus().getCode() != 0) {
                        throw new IllegalStateException(reply.getStatus().getMessage());
                    }
                    float[] vector = new float[reply.getEmbeddings(0).getDimensions()];
                    reply.getEmbeddings(0).getEmbedding().asReadOnlyByteBuffer()
                            .order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer().get(vector);
                    vectors.put(reply.getRequestId(), vector);
                }
            }
        }
        System.out.println("replies: " + vectors.size() + " dimensions: "
                + vectors.values().iterator().next().length);
    }
}
