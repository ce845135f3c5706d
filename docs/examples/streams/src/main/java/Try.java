import java.nio.file.Files;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KafkaStreams;

/** Runs the job on 1,000 documents, of which one half is replaced at once, until each has the vector of its last text. */
public class Try {
    static final int DOCUMENTS = 1000;

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", System.getenv().getOrDefault("KAFKA_BOOTSTRAP", "localhost:9092"));
        createTopics(settings);
        Properties job = new Properties();
        job.putAll(settings);
        job.put("application.id", "embed-documents");
        job.put("processing.guarantee", "exactly_once_v2");
        job.put("auto.offset.reset", "earliest");
        job.put("replication.factor", "1"); // of a single broker
        job.put("state.dir", Files.createTempDirectory("embed-documents").toString());
        KafkaStreams streams = new KafkaStreams(EmbedDocuments.topology(), job);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            System.exit(1);
            return null;
        });
        streams.start();
        Map<String, String> wanted = produce(settings);
        Map<String, String> found = new HashMap<>();
        int records = 0;
        int dimensions = 0;
        settings.put("isolation.level", "read_committed");
        try (KafkaConsumer<String, byte[]> consumer =
                new KafkaConsumer<>(settings, new StringDeserializer(), new ByteArrayDeserializer())) {
            List<TopicPartition> places = consumer.partitionsFor(EmbedDocuments.OUT).stream()
                    .map(each -> new TopicPartition(each.topic(), each.partition()))
                    .collect(Collectors.toList());
            consumer.assign(places);
            consumer.seekToBeginning(places);
            long end = System.currentTimeMillis() + 60_000;
            while (!found.equals(wanted) && System.currentTimeMillis() < end) {
                for (ConsumerRecord<String, byte[]> record : consumer.poll(Duration.ofMillis(500))) {
                    var reply = EmbedDocuments.parsed(record.value());
                    found.put(record.key(), reply.getRequestId());
                    dimensions = reply.getEmbeddings(0).getDimensions();
                    records++;
                }
            }
        }
        streams.close(Duration.ofSeconds(10));
        System.out.println("documents: " + found.size() + " of their last text: " + found.equals(wanted)
                + " dimensions: " + dimensions);
        System.err.println("records out: " + records + " of 1500 in");
    }

    /** The topic of documents has as many partitions as that of the replies: the two are joined. */
    private static void createTopics(Properties settings) throws Exception {
        try (Admin admin = Admin.create(settings)) {
            String replies = EmbedDocuments.REPLIES;
            int partitions = admin.describeTopics(List.of(replies)).allTopicNames().get().get(replies).partitions().size();
            List<NewTopic> topics = new ArrayList<>();
            for (String name : List.of(EmbedDocuments.IN, EmbedDocuments.OUT, EmbedDocuments.FAILED)) {
                topics.add(new NewTopic(name, Optional.of(partitions), Optional.empty()));
            }
            admin.createTopics(topics).all().get();
        }
    }

    /** Returns what the last request of each document is called. */
    private static Map<String, String> produce(Properties settings) throws Exception {
        Map<String, String> wanted = new HashMap<>();
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (int number = 0; number < DOCUMENTS * 3 / 2; number++) {
                String key = "document-" + number % DOCUMENTS;
                var place = producer.send(new ProducerRecord<>(EmbedDocuments.IN, key, "version " + number + " of " + key));
                var written = place.get();
                wanted.put(key, written.topic() + "-" + written.partition() + "-" + written.offset());
            }
        }
        return wanted;
    }
}
